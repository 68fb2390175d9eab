package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// goneReader is a standard output whose reader has left.
type goneReader struct{ after int }

func (w *goneReader) Write(p []byte) (int, error) {
	if w.after--; w.after < 0 {
		return 0, syscall.EPIPE
	}
	return len(p), nil
}

func TestLogsReaderIsGone(t *testing.T) {
	isolate(t)
	s := startNATS(t, server.Options{})
	v := serveLogs(t, s, func(v *logService) { v.lines(podA, "one\n") })
	var stderr bytes.Buffer
	code := run(t.Context(), []string{"logs", "-f", "shop/production/search", "--nats-url", s.ClientURL()}, &goneReader{}, &stderr)
	if code != exitOK || stderr.Len() > 0 {
		t.Errorf("got exit code %d and %q", code, &stderr)
	}
	v.wantStop(t)
}

func TestLogsInterrupted(t *testing.T) {
	isolate(t)
	s := startNATS(t, server.Options{})
	v := serveLogs(t, s, func(v *logService) { v.lines(podA, "one\n") })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"logs", "-f", "shop/production/search", "--nats-url", s.ClientURL()}, &stdout, &stderr)
	}()
	waitFor(t, "the first line, which is not held back", func() bool { return stdout.String() == "one\n" })
	cancel()
	if code := <-done; code != exitOK || stderr.String() != "" {
		t.Errorf("got exit code %d and %q", code, stderr.String())
	}
	v.wantStop(t)
}

func TestLogsInterruptedWhileConnecting(t *testing.T) {
	isolate(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var stdout, stderr output
	code := run(ctx, []string{"logs", "a/b/c", "--log-level", "error", "--nats-url", "nats://" + unusedAddress(t)}, &stdout, &stderr)
	if code != exitOK || stdout.String() != "" || stderr.String() != "" {
		t.Errorf("got exit code %d, %q and %q", code, stdout.String(), stderr.String())
	}
}

// TestLogsAsAProcess: what a shell sees of it.
func TestLogsAsAProcess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		// act gets the process and its standard output.
		act   func(t *testing.T, v *logService, cmd *exec.Cmd, out io.ReadCloser)
		stuck bool // in a write: it cannot end by itself
	}{
		{"the reader leaves", func(t *testing.T, v *logService, _ *exec.Cmd, out io.ReadCloser) {
			readSome(t, out)
			if err := out.Close(); err != nil {
				t.Error(err)
			}
			v.lines(podA, "more\n")
		}, false},
		{"interrupt", func(t *testing.T, _ *logService, cmd *exec.Cmd, out io.ReadCloser) {
			readSome(t, out)
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}, false},
		{"the terminal is gone", func(t *testing.T, _ *logService, cmd *exec.Cmd, out io.ReadCloser) {
			readSome(t, out)
			if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Error(err)
			}
		}, false},
		{"interrupt while nobody reads", func(t *testing.T, v *logService, cmd *exec.Cmd, out io.ReadCloser) {
			readSome(t, out)
			line := strings.Repeat("x", 100<<10) + "\n"
			for range 10 { // more than a pipe and the buffer hold
				v.lines(podA, line)
			}
			readSome(t, out)
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := startNATS(t, server.Options{})
			v := serveLogs(t, s, func(v *logService) { v.lines(podA, "one\n") })
			binary, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), binary, "logs", "-f", "shop/production/search", "--nats-url", s.ClientURL())
			cmd.Env = isolatedEnviron(t)
			var stderr output
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			test.act(t, v, cmd, out)
			if err := cmd.Wait(); err != nil || stderr.String() != "" {
				t.Errorf("got %v and %q", err, stderr.String())
			}
			if !test.stuck {
				v.wantStop(t)
			}
		})
	}
}

func readSome(t *testing.T, from io.Reader) {
	t.Helper()
	if _, err := io.ReadFull(from, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
}

func TestKillWhenStuck(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	killed := make(chan struct{}, 1)
	stop := killWhenStuck(ctx, time.Hour, func() { killed <- struct{}{} })
	cancel()
	stop()
	select {
	case <-killed:
		t.Error("killed a command that had returned")
	default:
	}
	stop = killWhenStuck(ctx, time.Millisecond, func() { killed <- struct{}{} })
	<-killed
	stop()
}
