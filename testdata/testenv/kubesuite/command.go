package kubesuite

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Command is a running shell command line.
type Command struct {
	tb   testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	exit error         // read after done

	mu       sync.Mutex
	out, err bytes.Buffer
}

type locked struct {
	mu  *sync.Mutex
	buf *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// environ has commands use the world's tools and servers.
func (w *World) environ() []string {
	return append(os.Environ(), "PATH="+w.Bin+":"+os.Getenv("PATH"), "HOME="+w.home, "KUBECONFIG="+w.KubeconfigPath, "NATS_URL="+w.NATS, "APPBRIDGE_NATS_URL="+w.NATS)
}

// Prepare has a command use the world's tools and servers.
func (w *World) Prepare(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = w.environ()
	if filepath.Base(cmd.Path) == cmd.Path || cmd.Err != nil {
		cmd.Path, cmd.Err = filepath.Join(w.Bin, cmd.Args[0]), nil
	}
	return cmd
}

// Start runs a command line as a user's shell would. It ends with the test.
func (w *World) Start(tb testing.TB, line string) *Command {
	tb.Helper()
	c := &Command{tb: tb, cmd: exec.Command("bash", "-c", line), done: make(chan struct{})}
	c.cmd.Env = w.environ()
	c.cmd.Stdout, c.cmd.Stderr = locked{&c.mu, &c.out}, locked{&c.mu, &c.err}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.exit = c.cmd.Wait()
	}()
	tb.Cleanup(func() {
		c.Signal(syscall.SIGKILL)
		<-c.done
	})
	return c
}

// Signal goes to the whole pipeline, as from a terminal.
func (c *Command) Signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.cmd.Process.Pid, sig) // it may have ended
}

// Stdout is what it has printed so far.
func (c *Command) Stdout() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// Stderr is what it has said so far.
func (c *Command) Stderr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err.String()
}

// Wait waits for the end, which must be a good one, and is what was printed.
func (c *Command) Wait() string {
	c.tb.Helper()
	select {
	case <-c.done:
		if c.exit != nil {
			c.tb.Errorf("%s: %v\n%s", c.cmd.Args[2], c.exit, c.Stderr())
		}
	case <-time.After(2 * suite.Patience):
		c.tb.Fatalf("%s does not end:\n%s", c.cmd.Args[2], c.Stderr())
	}
	return c.Stdout()
}

// Interrupt is Ctrl-C; what a command thinks of that is its own matter.
func (c *Command) Interrupt() string {
	c.tb.Helper()
	c.Signal(syscall.SIGINT)
	select {
	case <-c.done:
	case <-time.After(suite.Patience):
		c.tb.Fatalf("%s does not end", c.cmd.Args[2])
	}
	return c.Stdout()
}

// WaitFor waits until something was printed.
func (c *Command) WaitFor(text string) {
	c.tb.Helper()
	suite.Eventually(c.tb, suite.Patience, fmt.Sprintf("%s prints %q", c.cmd.Args[2], text), func() error {
		if got := c.Stdout(); !strings.Contains(got, text) {
			return fmt.Errorf("it prints %.2000s\n%s", got, c.Stderr())
		}
		return nil
	})
}
