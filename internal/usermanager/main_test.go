//go:build linux

package usermanager

import "testing"

func TestMain(m *testing.M) { Main(m) }
