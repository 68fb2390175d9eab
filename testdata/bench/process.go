package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	stopTimeout = 30 * time.Second
	// ticks is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux.
	ticks = 100
)

// process is one of a round.
type process struct {
	cmd   *exec.Cmd
	name  string
	log   string
	began time.Time
	ended chan struct{} // closed when it has ended
}

// start starts a program, whose output goes to a file.
func start(name, log, path string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p := &process{cmd: exec.Command(path, args...), name: name, log: log, began: time.Now(), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = file, file, child()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code does not matter: what ends too early fails the round
	}()
	return p, nil
}

// stop ends the process and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// failed is err with the end of the process' output.
func (p *process) failed(err error) error {
	text, _ := os.ReadFile(p.log)
	return fmt.Errorf("%s: %w\n--- end of its output\n%s", p.name, err, text[max(0, len(text)-2000):])
}

// until calls done every interval until it is true. It is an error if the process ends.
func (p *process) until(ctx context.Context, interval time.Duration, done func() bool) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-p.ended:
			return p.failed(errors.New("it ended"))
		case <-ctx.Done():
			return p.failed(context.Cause(ctx))
		}
	}
	return nil
}

// untilReady waits for /readyz at an address, and returns the time since the start.
func (p *process) untilReady(ctx context.Context, address string) (time.Duration, error) {
	err := p.until(ctx, 5*time.Millisecond, func() bool {
		_, err := get(ctx, "http://"+address+"/readyz")
		return err == nil
	})
	return time.Since(p.began), err
}

// processorTime is what the process has used, of user and system time.
func (p *process) processorTime() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// What stands in brackets may have any character; user and system time are fields 14 and 15.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("the processor time of %s: %q", p.name, text)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticks, errors.Join(err, systemErr)
}

// memory is resident memory in bytes, now and at most.
func (p *process) memory() (resident, peak float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	return numberAfter(text, "\nVmRSS:") * 1024, numberAfter(text, "\nVmHWM:") * 1024, nil
}

// liveHeap is what is in use right after a collection, in bytes. address is that of profiles.
func liveHeap(ctx context.Context, address string) (float64, error) {
	text, err := get(ctx, "http://"+address+"/debug/pprof/heap?gc=1&debug=1")
	return numberAfter(text, "\n# HeapAlloc ="), err
}

// numberAfter is the number behind a word, 0 without one.
func numberAfter(text []byte, word string) float64 {
	_, rest, _ := strings.Cut(string(text), word)
	var n float64
	_, _ = fmt.Sscan(rest, &n) // no number: 0
	return n
}

// get reads a page; another status than 200 is an error.
func get(ctx context.Context, url string) ([]byte, error) { return request(ctx, http.MethodGet, url) }

func request(ctx context.Context, method, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, body)
	}
	return body, err
}
