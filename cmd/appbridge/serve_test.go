package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// fakeBridge stands in for the bridge to inject its failures.
type fakeBridge struct {
	run   func(ctx context.Context) error
	ready error
}

func (f fakeBridge) Run(ctx context.Context) error { return f.run(ctx) }
func (f fakeBridge) Ready() error                  { return f.ready }

const errUnsynced = "the informers of the fake have shown nothing"

func (fakeBridge) Synced() error                           { return errors.New(errUnsynced) }
func (fakeBridge) App(subjects.AppID) (appsvc.Entry, bool) { return appsvc.Entry{}, false }
func (fakeBridge) Services(func(*app.CachedService) bool) []*app.CachedService {
	return nil
}
func (fakeBridge) Pods(string, string) ([]corev1.Pod, error) { return nil, errors.New(errUnsynced) }

// untilDone is the run of a bridge that nothing happens to.
func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// serving runs serve with a fake bridge and returns where it listens and what
// it ended with.
type serving struct {
	http     string
	natsURLs []string
	stop     context.CancelFunc
	ended    chan error
	nc       *nats.Conn
}

// wait returns what serve ended with.
func (s *serving) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.ended:
		return err
	case <-time.After(suite.Patience):
		t.Fatal("serve does not end")
		return nil
	}
}

func startServing(t *testing.T, cfg config.Config, b fakeBridge, log *zap.Logger) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &serving{stop: cancel, ended: make(chan error, 1)}
	listening, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- serve(ctx, cfg, log, hooks{
			newBridge: func(_ bridge.Config, _ *rest.Config, nc *nats.Conn, _ *zap.Logger, _ prometheus.Registerer) (runner, error) {
				s.nc = nc
				return b, nil
			},
			listening: func(http net.Addr, natsURLs []string) {
				s.http, s.natsURLs = "http://"+http.String(), natsURLs
				close(listening)
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case <-listening:
	case err := <-s.ended:
		t.Fatalf("serve ended early: %v", err)
	}
	return s
}

// testConfig listens on free ports and uses an embedded server.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	cfg := config.Default(config.Serve)
	cfg.Kube = &rest.Config{Host: "https://127.0.0.1:1"}
	cfg.HTTPListen = "127.0.0.1:0"
	cfg.NATSEmbedded, cfg.NATSEmbeddedListen, cfg.NATSEmbeddedDir = true, "127.0.0.1:0", filepath.Join(t.TempDir(), "data")
	return cfg
}

func TestServeStopsInOrder(t *testing.T) {
	t.Parallel()
	var s *serving
	flushed := make(chan struct{})
	b := fakeBridge{ready: errors.New("no leader"), run: func(ctx context.Context) error {
		<-ctx.Done()
		// While the bridge flushes, everything that it needs is still there.
		if err := s.nc.Flush(); err != nil {
			t.Errorf("flush during the stop: %v", err)
		}
		if status, body := get(t, s.http+"/readyz"); status != 503 || body != "no leader\n" {
			t.Errorf("got /readyz %d %q during the stop, want 503 and the bridge's reason", status, body)
		}
		close(flushed)
		return nil
	}}
	s = startServing(t, testConfig(t), b, zaptest.NewLogger(t))
	waitFor(t, "the connection to NATS", s.nc.IsConnected)
	if got, want := s.nc.ConnectedUrl(), s.natsURLs[0]; got != want {
		t.Errorf("got connection to %q, want the embedded server %q", got, want)
	}
	if got, want := statusOf(t, s.http+"/healthz"), 200; got != want {
		t.Errorf("got /healthz %d, want %d", got, want)
	}
	s.stop()
	<-flushed
	if err := s.wait(t); err != nil {
		t.Errorf("got %v after a clean stop", err)
	}
	if got := statusOf(t, s.http+"/healthz"); got != 0 {
		t.Errorf("got /healthz %d after the stop, want no answer", got)
	}
	if !s.nc.IsClosed() {
		t.Error("the connection to NATS is still open")
	}
	if _, err := nats.Connect(s.natsURLs[0]); !errors.Is(err, nats.ErrNoServers) {
		t.Errorf("got %v, want no embedded server any more", err)
	}
}

func TestServeReturnsTheBridgesError(t *testing.T) {
	t.Parallel()
	broken := errors.New("stream FLYTE_APPS belongs to another cluster")
	s := startServing(t, testConfig(t), fakeBridge{run: func(context.Context) error { return broken }}, zaptest.NewLogger(t))
	if err := s.wait(t); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	cfg := testConfig(t)
	err := serve(t.Context(), cfg, zaptest.NewLogger(t), hooks{
		newBridge: func(bridge.Config, *rest.Config, *nats.Conn, *zap.Logger, prometheus.Registerer) (runner, error) {
			return nil, broken
		},
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

func TestServeWithOccupiedPorts(t *testing.T) {
	t.Parallel()
	occupied := configtest.OccupiedPort(t)
	cfg := testConfig(t)
	cfg.NATSEmbeddedListen = occupied
	err := serve(t.Context(), cfg, zaptest.NewLogger(t), hooks{})
	want := "nats-embedded-listen " + occupied + ": bind: address already in use; choose another with --nats-embedded-listen"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := os.Stat(cfg.NATSEmbeddedDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for the data folder, want that it was not made", err)
	}
}

func TestStopOnSignal(t *testing.T) {
	received := make(chan os.Signal, 1) // this process survives the signals
	signal.Notify(received, syscall.SIGTERM)
	defer signal.Stop(received)
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	terminate := func() {
		send(t, self, syscall.SIGTERM)
		<-received
	}

	ctx, stop := stopOnSignal(t.Context(), zap.NewNop(), time.Hour, func() { t.Error("killed by the first signal's copy") })
	terminate()
	<-ctx.Done()
	terminate()
	stop()

	killed := make(chan struct{})
	ctx, stop = stopOnSignal(t.Context(), zap.NewNop(), 0, func() { close(killed) })
	terminate()
	<-ctx.Done()
	waitFor(t, "the kill by a second signal", func() bool {
		terminate()
		select {
		case <-killed:
			return true
		default:
			return false
		}
	})
	stop()

	ctx, stop = stopOnSignal(t.Context(), zap.NewNop(), 0, func() { t.Error("killed without a signal") })
	if err := ctx.Err(); err != nil {
		t.Errorf("got %v without a signal", err)
	}
	stop()
}

func TestNewIdentity(t *testing.T) {
	first, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	second, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if first == second || !strings.HasPrefix(first, host+"_") {
		t.Errorf("got identities %q and %q, want two that differ and begin with %q", first, second, host)
	}
}

// TestProgram runs the program as a process: it listens, answers, and ends
// with 0 after SIGTERM although the cluster never came.
func TestProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program, "serve", "--log-format=json", "--http-listen=127.0.0.1:0", "--nats-embedded",
		"--nats-embedded-listen=127.0.0.1:0", "--flush-timeout=1s")
	command.Dir = dir
	command.Env = []string{asProgram + "=" + beProgram, "APPBRIDGE_KUBECONFIG=" + configtest.WriteKubeconfig(t, dir, "https://127.0.0.1:1")}
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var lines output
	fields := make(chan map[string]any, 1000)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(fields)
		scanner := bufio.NewScanner(stderr)
		for scanner.Scan() {
			_, _ = lines.Write(append(scanner.Bytes(), '\n'))
			line := map[string]any{}
			if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
				t.Errorf("not a line of JSON: %q", scanner.Text())
			}
			fields <- line
		}
	})
	var address, url string
	for line := range fields {
		switch line["msg"] {
		case "HTTP server listens":
			address, _ = line["address"].(string)
		case "embedded NATS server listens":
			url, _ = line["url"].(string)
		}
		if address != "" && url != "" {
			break
		}
	}
	if address == "" || url == "" {
		t.Fatalf("the program ended early:\n%s", lines.String())
	}
	if status, body := get(t, "http://"+address+"/healthz"); status != 200 || body != "ok\n" {
		t.Errorf("got /healthz %d %q, want 200 ok", status, body)
	}
	if status, body := get(t, "http://"+address+"/readyz"); status != 503 || body == "\n" || body == "ok\n" {
		t.Errorf("got /readyz %d %q, want 503 and a reason", status, body)
	}
	nc, err := nats.Connect(url, nats.Timeout(suite.Patience))
	if err != nil {
		t.Error(err)
	}
	nc.Close()
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range fields { // until its log ends
	}
	reading.Wait()
	if err := command.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0:\n%s", err, lines.String())
	}
	if _, err := os.Stat(filepath.Join(dir, "appbridge-data", "jetstream")); err != nil {
		t.Errorf("the default folder holds no streams: %v", err)
	}
}
