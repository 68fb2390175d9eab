package testenv_test

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// A launcher can be executed as soon as it is written, also while other goroutines start processes.
func TestWriteProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var writers sync.WaitGroup
	for writer := range 8 {
		writers.Go(func() {
			for i := range 50 {
				path := filepath.Join(dir, strconv.Itoa(writer)+"-"+strconv.Itoa(i))
				if err := testenv.WriteProgram(path, "#!/bin/sh\n"); err != nil {
					t.Error(err)
					return
				}
				if err := exec.CommandContext(t.Context(), path).Run(); err != nil {
					t.Errorf("execute %s: %v", path, err)
					return
				}
			}
		})
	}
	writers.Wait()
}
