package render

import "strings"

// plainWord are the characters that no shell takes for anything but themselves.
const plainWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+:,./-_"

// Command is the line that a person types, or copies into a shell, for a command of these words.
func Command(words ...string) string {
	out := make([]string, len(words))
	for i, s := range words {
		out[i] = s
		if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(plainWord, r) }) {
			out[i] = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}
