package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a program that runs beside a [Cluster], or a server of [NATS]. Its
// output goes to a file, a Ctrl-C at the terminal does not reach it, and should
// this process be killed, it is killed too. Its methods may be called from
// several goroutines.
type Process struct {
	name    string
	logPath string
	process *os.Process
	done    chan struct{} // closed when the process has ended and is reaped
	exit    error         // how it ended; read after done
	left    error         // what could not be tidied up; read after done
}

// Run starts a program and appends its output to the file logPath. The name
// tells it from the other programs that run beside the cluster.
func (c *Cluster) Run(name, logPath, path string, args ...string) (*Process, error) {
	return c.guard.run(name, logPath, path, args...)
}

// run starts a program that ends with the guard's own process.
func (g *guard) run(name, logPath, path string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A Ctrl-C goes to the whole process group of the terminal, but this process
	// says when its programs end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	p := &Process{name: name, logPath: logPath, process: cmd.Process, done: make(chan struct{})}
	if err := g.adopt(name, cmd.Process.Pid); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), cmd.Process.Kill(), ignoreExit(cmd.Wait()), log.Close())
	}
	go func() {
		defer close(p.done)
		p.exit = cmd.Wait()
		p.left = errors.Join(g.ended(name), log.Close())
	}()
	return p, nil
}

// ignoreExit leaves out that a process ended with another code than 0.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// PID is the id of the process.
func (p *Process) PID() int { return p.process.Pid }

// Done is closed when the process has ended, whatever ended it.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the process ended, nil for exit code 0. It waits for the end.
func (p *Process) Exit() error {
	<-p.done
	return p.exit
}

// Signal sends a signal. A process that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", sig, p.name, err)
	}
	return nil
}

// Kill ends the process without asking it and waits until it is gone.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	<-p.done
	return errors.Join(err, p.left)
}

// Stop asks the process to end and waits for that; after the timeout it kills
// it. An exit code other than 0 is an error, but not one of a process that had
// ended before: whoever watches Done knows of that.
func (p *Process) Stop(timeout time.Duration) error {
	select {
	case <-p.done:
		return p.left
	default:
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(err, p.Kill())
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop within %s and was killed", p.name, timeout), p.Kill())
	}
	if p.exit != nil {
		return errors.Join(fmt.Errorf("stop %s: %w", p.name, p.exit), p.left)
	}
	return p.left
}

// LogPath is the file that the process writes to.
func (p *Process) LogPath() string { return p.logPath }

// LogTail is the end of what the process wrote.
func (p *Process) LogTail() (string, error) {
	text, err := tailOf(p.logPath)
	if err != nil {
		return "", fmt.Errorf("read the log of %s: %w", p.name, err)
	}
	return text, nil
}

// tailOf is the end of a log.
func tailOf(path string) (string, error) {
	const tail = 4 << 10
	text, err := os.ReadFile(path)
	return string(text[max(0, len(text)-tail):]), err
}

// quoteLog is the end of a program's log for an error text, "" if there is none.
func quoteLog(name, path string) string {
	text, err := tailOf(path)
	if err != nil || text == "" {
		return ""
	}
	return fmt.Sprintf("--- end of %s's log\n%s", name, text)
}
