package testenv_test

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// shell runs a script beside the cluster.
func shell(t *testing.T, c *testenv.Cluster, name, script string) *testenv.Process {
	t.Helper()
	p, err := c.Run(name, filepath.Join(t.TempDir(), "log"), "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// said waits until a process has written something.
func said(t *testing.T, p *testenv.Process, what string) {
	t.Helper()
	var tail string
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, soon, true, func(context.Context) (done bool, err error) {
		tail, err = p.LogTail()
		return strings.Contains(tail, what), err
	})
	if err != nil {
		t.Fatalf("got %q, want %q in it: %v", tail, what, err)
	}
}

func TestProcess(t *testing.T) {
	c := shared.Get(t)

	t.Run("ends by itself", func(t *testing.T) {
		p := shell(t, c, "short", "echo hello; exit 3")
		if err := p.Exit(); err == nil || err.Error() != "exit status 3" {
			t.Errorf("got %v, want exit status 3", err)
		}
		said(t, p, "hello\n")
		if err := p.Stop(time.Second); err != nil {
			t.Errorf("stopped afterwards: got %v, want nil", err)
		}
	})
	t.Run("is stopped", func(t *testing.T) {
		p := shell(t, c, "polite", "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done")
		said(t, p, "up")
		if err := p.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	})
	t.Run("is stopped and complains", func(t *testing.T) {
		p := shell(t, c, "grumpy", "trap 'exit 4' TERM; echo up; while :; do sleep 0.01; done")
		said(t, p, "up")
		if err := p.Stop(time.Minute); err == nil || !strings.Contains(err.Error(), "exit status 4") {
			t.Errorf("got %v, want exit status 4", err)
		}
	})
	t.Run("does not stop and is killed", func(t *testing.T) {
		p := shell(t, c, "stubborn", "trap '' TERM; echo up; while :; do sleep 0.01; done")
		said(t, p, "up")
		if err := p.Stop(100 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
			t.Errorf("got %v, want that it was killed", err)
		}
		if syscall.Kill(p.PID(), 0) == nil {
			t.Error("the process is still there")
		}
	})
	t.Run("stands still and is killed", func(t *testing.T) {
		p := shell(t, c, "paused", "echo up; while :; do sleep 0.01; done")
		said(t, p, "up")
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		<-p.Done()
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Errorf("a signal to what has ended: got %v, want nil", err)
		}
	})
	t.Run("is not there", func(t *testing.T) {
		if p, err := c.Run("missing", filepath.Join(t.TempDir(), "log"), "/nowhere/program"); err == nil {
			t.Errorf("got process %d, want an error", p.PID())
		}
	})
}

// A process goes away with the one that runs the cluster.
func TestProcessLosesParent(t *testing.T) {
	c := start(t, testenv.Options{NoCRDs: true})
	p := shell(t, c, "child", "echo up; while :; do sleep 0.01; done")
	said(t, p, "up")
	if err := testenv.LoseParent(c); err != nil {
		t.Error(err)
	}
	if err := p.Exit(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want that it was killed", err)
	}
}
