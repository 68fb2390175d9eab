package main

import (
	"errors"
	"os"
	"runtime/debug"
	"testing"
)

// A start collects garbage more often, and only a start does.
func TestLimitStart(t *testing.T) {
	read := func() int {
		percent := debug.SetGCPercent(usualGrowth)
		debug.SetGCPercent(percent)
		return percent
	}
	t.Setenv("GOGC", "") // so that it comes back
	if err := os.Unsetenv("GOGC"); err != nil {
		t.Fatal(err)
	}
	tries := 0
	limitStart(t.Context(), func() error {
		if tries++; read() != startGrowth {
			t.Errorf("while it starts the heap grows by %d %%", read())
		}
		if tries < 3 {
			return errors.New("starting")
		}
		return nil
	})
	if tries != 3 || read() != usualGrowth {
		t.Errorf("after %d tries the heap grows by %d %%", tries, read())
	}
	t.Setenv("GOGC", "200")
	limitStart(t.Context(), func() error {
		t.Error("a growth of the environment's is changed")
		return nil
	})
}
