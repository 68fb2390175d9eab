package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second

	demoCluster = "demo"
)

// child is a running `appbridge serve`.
type child struct {
	*testenv.Process

	natsURL, http string
	kubeconfig    string // of the cluster
	bin           string // its absolute path
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
	natsListen, err := network.FreeAddress("127.0.0.1:4222")
	if err != nil {
		return nil, err
	}
	httpListen, err := network.FreeAddress("127.0.0.1:8080")
	if err != nil {
		return nil, err
	}
	c := &child{natsURL: "nats://" + natsListen, http: httpListen, kubeconfig: kubeconfig}
	if c.bin, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	c.Process, err = cluster.Run("appbridge", filepath.Join(dir, "appbridge.log"), bin, "serve",
		"--kubeconfig", kubeconfig,
		"--cluster-name", demoCluster,
		"--nats-embedded",
		"--nats-embedded-dir", filepath.Join(dir, "jetstream"),
		"--nats-embedded-listen", natsListen,
		"--http-listen", httpListen,
		"--base-domain", baseDomain,
		"--enable-writes",
		"--log-format", "console",
	)
	if err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx); err != nil {
		return nil, errors.Join(c.explain(ctx, err), c.stop())
	}
	return c, nil
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
		case <-c.Done():
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
		case <-c.Done():
			cancel(fmt.Errorf("%w: %s", errEnded, exitText(c.Exit())))
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
	tail, readErr := c.LogTail()
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	return fmt.Errorf("%w\n--- end of appbridge's log\n%s", err, tail)
}

// stop has appbridge shut down, by force when it takes too long. That it ended
// before is reported where it was noticed.
func (c *child) stop() error { return c.Stop(stopTimeout) }
