package docs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// shell runs command lines as a reader's shell would.
type shell struct {
	dir string // where they run, with the files that they read
	env []string
}

// newShell makes the environment of a reader, without anything of the one that runs the tests.
func newShell(t *testing.T) *shell {
	t.Helper()
	dir := t.TempDir()
	return &shell{dir: dir, env: []string{"PATH=" + toolsDir(t) + ":" + os.Getenv("PATH"), "HOME=" + dir, "KUBECONFIG=" + dir + "/kubeconfig"}}
}

// command is a running command line.
type command struct {
	t    *testing.T
	line string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	exit error         // read after done

	mu  sync.Mutex
	out bytes.Buffer // of both outputs
}

func (c *command) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *command) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

func (s *shell) start(t *testing.T, line string, env ...string) *command {
	t.Helper()
	c := &command{t: t, line: line, cmd: exec.Command("bash", "-o", "pipefail", "-c", line), done: make(chan struct{})}
	c.cmd.Dir, c.cmd.Env = s.dir, append(append([]string{}, s.env...), env...)
	c.cmd.Stdout, c.cmd.Stderr = c, c
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.exit = c.cmd.Wait()
	}()
	t.Cleanup(func() {
		c.signal(syscall.SIGKILL)
		<-c.done
	})
	return c
}

// signal goes to the whole pipeline, as from a terminal.
func (c *command) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.cmd.Process.Pid, sig) // it may have ended
}

// wait waits for the end and returns the exit code.
func (c *command) wait() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(suite.Patience):
		c.t.Fatalf("%s does not end:\n%s", c.line, c.output())
	}
	var exit *exec.ExitError
	if c.exit != nil && !errors.As(c.exit, &exit) {
		c.t.Fatalf("%s: %v", c.line, c.exit)
	}
	return c.cmd.ProcessState.ExitCode()
}

var listens = regexp.MustCompile(`HTTP server listens.*?(127\.0\.0\.1:\d+)`)

// readyz is the answer of a running `appbridge serve`.
func (c *command) readyz(ctx context.Context) (answer string, ready bool, err error) {
	address := listens.FindStringSubmatch(c.output())
	if address == nil {
		return "", false, errors.New("it does not listen yet")
	}
	i := kubesuite.Instance{HTTP: address[1]}
	body, status, err := i.Get(ctx, "/readyz")
	return strings.TrimSpace(body), status == http.StatusOK, err
}

// until waits for an answer of /readyz that is as wanted.
func (c *command) until(what string, wanted func(answer string, ready bool) bool) {
	c.t.Helper()
	suite.Eventually(c.t, suite.Patience, what, func() error {
		select {
		case <-c.done:
			return fmt.Errorf("%w: %s ended:\n%s", suite.ErrFatal, c.line, c.output())
		default:
		}
		answer, ready, err := c.readyz(c.t.Context())
		if err == nil && !wanted(answer, ready) {
			err = fmt.Errorf("/readyz answers %q", answer)
		}
		return err
	})
}

// untilReady waits until `appbridge serve` is ready.
func (c *command) untilReady() {
	c.t.Helper()
	c.until(c.line+" is ready", func(_ string, ready bool) bool { return ready })
}

// interrupt is Ctrl-C.
func (c *command) interrupt() int {
	c.t.Helper()
	c.signal(syscall.SIGINT)
	return c.wait()
}

// insist is Ctrl-C, and then SIGTERM: what a shell started in the background ignores SIGINT, and so
// do its children.
func (c *command) insist() {
	c.t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	c.signal(syscall.SIGINT)
	for limit := time.After(suite.Patience); ; c.signal(syscall.SIGTERM) {
		select {
		case <-c.done:
			return
		case <-tick.C:
		case <-limit:
			c.t.Fatalf("%s does not end:\n%s", c.line, c.output())
		}
	}
}

// freed replaces the addresses of the pages by free ones.
func freed(t *testing.T, line string) string {
	t.Helper()
	for _, fixed := range []string{"127.0.0.1:8081", "127.0.0.1:8080"} {
		if strings.Contains(line, fixed) {
			free, err := network.FreeAddress("")
			if err != nil {
				t.Fatal(err)
			}
			line = strings.ReplaceAll(line, fixed, free)
		}
	}
	return line
}

// lines are the command lines of a block: comments go, continued lines are joined.
func (b block) lines() []string {
	joined := strings.NewReplacer("\\\n", " ", "|\n", "| ").Replace(b.text)
	var lines []string
	for line := range strings.SplitSeq(joined, "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// run runs the commands of a block. `appbridge serve` has to become ready and is interrupted then,
// everything else has to end well.
func (s *shell) run(t *testing.T, b block) {
	t.Helper()
	for _, line := range b.lines() {
		c := s.start(t, freed(t, line))
		code := 0
		switch {
		case strings.HasPrefix(line, "appbridge serve") && !strings.Contains(line, "--help"):
			c.untilReady()
			code = c.interrupt()
		default:
			code = c.wait()
		}
		if code != 0 {
			t.Fatalf("line %d: %s: exit code %d\n%s", b.line, line, code, c.output())
		}
	}
}

// goEnv is a setting of Go, for commands that build.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
