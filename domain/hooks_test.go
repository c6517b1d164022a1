package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "gaia/domain"
)

func TestHooksAreKnownByWhatTheyDo(t *testing.T) {
	t.Parallel()
	a := Hooks{AfterCreate: Hook{Script: "make", Timeout: time.Second}}
	b := Hooks{AfterCreate: Hook{Script: "make", Timeout: time.Minute}}
	c := Hooks{BeforeRun: Hook{Script: "make"}}
	require.Len(t, a.SHA256(), 64)
	require.Equal(t, a.SHA256(), b.SHA256())
	require.NotEqual(t, a.SHA256(), c.SHA256(), "the same script at another time is another hook")
	for _, name := range []string{HookAfterCreate, HookBeforeRun, HookAfterRun, HookBeforeRemove} {
		_, err := a.Named(name)
		require.NoError(t, err)
	}
	_, err := a.Named("x")
	require.Error(t, err)
}
