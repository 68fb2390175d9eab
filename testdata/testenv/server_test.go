package testenv_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func TestSettled(t *testing.T) {
	t.Parallel()
	gone := fmt.Errorf("unable to signal for process: %w", syscall.ESRCH)
	other := errors.New("timeout waiting for process to stop")
	for name, test := range map[string]struct {
		answers []error
		want    error
	}{
		"at once":                    {[]error{nil}, nil},
		"gone, but not noted so far": {[]error{gone, gone, nil}, nil},
		"another error":              {[]error{other, nil}, other},
		"another error, later":       {[]error{gone, other, nil}, other},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked int
			err := testenv.Settled(func() error {
				asked++
				return test.answers[asked-1]
			})
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// Servers that die a moment before they are ended.
func TestDeadAlready(t *testing.T) {
	t.Parallel()
	c := start(t, testenv.Options{NoCRDs: true})
	dead := func(end func() error) {
		t.Helper()
		_, pids, err := testenv.Traces(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	dead(func() error {
		_, err := c.SaveEtcd(t.Context())
		return err
	})
	dead(c.Stop)
}
