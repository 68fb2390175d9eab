package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// child is a running `appbridge serve`.
type child struct {
	natsURL, http string
	logPath       string
	kubeconfig    string // of the cluster

	log     *os.File
	process *os.Process
	done    chan struct{} // closed when the process has ended
	exit    error         // how it ended; read after done
	release func() error
}

// startBridge starts the binary against the cluster and returns when it says
// that it is ready.
func startBridge(ctx context.Context, cluster *testenv.Cluster, bin string) (*child, error) {
	dir, err := cluster.Dir("appbridge")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cluster.Kubeconfig(kubeconfig); err != nil {
		return nil, err
	}
	// The usual ports when they are free: then no tool needs to be told.
	natsListen, err := freeAddress("127.0.0.1:4222")
	if err != nil {
		return nil, err
	}
	httpListen, err := freeAddress("127.0.0.1:8080")
	if err != nil {
		return nil, err
	}
	c := &child{
		natsURL:    "nats://" + natsListen,
		http:       httpListen,
		logPath:    filepath.Join(dir, "appbridge.log"),
		kubeconfig: kubeconfig,
		done:       make(chan struct{}),
	}
	if c.log, err = os.Create(c.logPath); err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, "serve",
		"--kubeconfig", kubeconfig,
		"--cluster-name", "demo",
		"--nats-embedded",
		"--nats-embedded-dir", filepath.Join(dir, "jetstream"),
		"--nats-embedded-listen", natsListen,
		"--http-listen", httpListen,
		"--base-domain", baseDomain,
		"--log-format", "console",
	)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	// A Ctrl-C reaches the whole process group of the terminal, but appbridge is
	// to stop when the demo says so.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", bin, err), c.log.Close())
	}
	c.process = cmd.Process
	go func() {
		defer close(c.done)
		c.exit = cmd.Wait()
	}()
	if c.release, err = cluster.Adopt("appbridge", cmd.Process); err == nil {
		err = c.awaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(c.explain(ctx, err), c.stop())
	}
	return c, nil
}

// freeAddress is the wanted address, or one with another port when somebody
// listens there.
func freeAddress(wanted string) (string, error) {
	listener, err := net.Listen("tcp", wanted)
	if err != nil {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	address := listener.Addr().String()
	return address, listener.Close()
}

func (c *child) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	last := "no answer yet"
	for {
		switch answer, ready := c.ready(ctx); {
		case ready:
			return nil
		case answer != "":
			last = answer
		}
		select {
		case <-poll.C:
		case <-c.done:
			return errors.New("appbridge ended before it was ready")
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("appbridge is not ready after %s: %s", readyTimeout, last)
			}
			return ctx.Err()
		}
	}
}

func (c *child) ready(ctx context.Context) (answer string, ready bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.http+"/readyz", nil)
	if err != nil {
		return err.Error(), false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", false
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", false
	}
	return string(bytes.TrimSpace(body)), resp.StatusCode == http.StatusOK
}

// context ends with parent, and when the process ends by itself.
func (c *child) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-c.done:
			cancel(fmt.Errorf("%w: %s", errEnded, exitText(c.exit)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-watching
	}
}

// exitText is how a process ended.
func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

var errEnded = errors.New("appbridge ended by itself")

// explain adds the end of appbridge's log to an error, unless the demo was
// just interrupted.
func (c *child) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errEnded) {
		err = cause
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	text, readErr := os.ReadFile(c.logPath)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	const tail = 4 << 10
	return fmt.Errorf("%w\n--- end of appbridge's log\n%s", err, text[max(0, len(text)-tail):])
}

// stop has appbridge shut down, by force when it takes too long.
func (c *child) stop() error {
	defer func() { _ = c.log.Close() }() // the child wrote it
	select {
	case <-c.done: // that it ended is reported where it was noticed
		return c.ended()
	default:
	}
	if err := c.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop appbridge: %w", err)
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-c.done:
	case <-timeout.C:
		err := c.process.Kill()
		<-c.done
		return errors.Join(fmt.Errorf("appbridge did not stop within %s and was killed", stopTimeout), err, c.ended())
	}
	if c.exit != nil {
		return errors.Join(fmt.Errorf("stop appbridge: %w", c.exit), c.ended())
	}
	return c.ended()
}

func (c *child) ended() error {
	if c.release == nil {
		return nil
	}
	return c.release()
}
