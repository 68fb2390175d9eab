package main

import (
	"os"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/histories/reader"
)

// patience is how long a reader may make no progress before that counts as a fault of it.
const patience = 2 * time.Minute

// storage is where the servers of histories store: in memory, where there is such a folder.
func storage(t *testing.T) string {
	t.Helper()
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		if dir, err := os.MkdirTemp("/dev/shm", "histories-"); err == nil { //nolint:usetesting // t.TempDir is on the disk
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			return dir
		}
	}
	return t.TempDir()
}

// `make histories` plays a thousand.
func TestHistories(t *testing.T) {
	t.Parallel()
	dir := storage(t)
	count := uint64(30)
	if testing.Short() {
		count = 8
	}
	for seed := uint64(1); seed <= count; seed++ {
		o, err := play(t.Context(), seed, dir, reader.Run, patience)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(o.problems) > 0 {
			t.Errorf("%s\n%s", o, o.trace.text.String())
		}
	}
}

// A reader is any process that prints such lines.
func TestHistoriesOfAProcess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := storage(t)
	for seed := uint64(101); seed <= 104; seed++ {
		o, err := play(t.Context(), seed, dir, process([]string{self, "reader"}), patience)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(o.problems) > 0 {
			t.Errorf("%s\n%s", o, o.trace.text.String())
		}
	}
}
