// Package sdnotify words what a service tells systemd about itself (sd_notify(3)). It must not send anything.
package sdnotify

import "strings"

// Status is the assignment of a status. It is one line, however the text was written: what follows a line break would be
// taken for another assignment, be it of MAINPID, and the rest of the text would be lost.
func Status(text string) string { return "STATUS=" + strings.Join(strings.Fields(text), " ") }
