package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// hangingProxy forwards connections to a server until it hangs: from then on
// it takes connections and reads nothing more, as a stopped process does.
type hangingProxy struct {
	listener net.Listener
	target   string
	hung     chan struct{}
	done     chan struct{}
	stopping sync.Once
	work     sync.WaitGroup
}

func startHangingProxy(t *testing.T, target string) *hangingProxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &hangingProxy{listener: listener, target: target, hung: make(chan struct{}), done: make(chan struct{})}
	p.work.Go(p.accept)
	t.Cleanup(p.stop)
	return p
}

// stop may be called twice.
func (p *hangingProxy) stop() {
	p.stopping.Do(func() { close(p.done) })
	_ = p.listener.Close() // ends accept
	p.work.Wait()
}

func (p *hangingProxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *hangingProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.serve(client) })
	}
}

func (p *hangingProxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	select {
	case <-p.hung:
		<-p.done
		return
	default:
	}
	upstream, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	ended := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{client, upstream}, {upstream, client}} {
		p.work.Go(func() {
			defer func() { ended <- struct{}{} }()
			buffer := make([]byte, 4096)
			for {
				n, err := pair[0].Read(buffer)
				if err != nil {
					return
				}
				select {
				case <-p.hung:
					<-p.done
					return
				default:
				}
				if _, err := pair[1].Write(buffer[:n]); err != nil {
					return
				}
			}
		})
	}
	select {
	case <-p.done:
	case <-ended:
		select {
		case <-p.hung:
			<-p.done
		default:
		}
	}
}

// askServices waits until both services answer at url. A flood asks them for far
// more then, and reads nothing of it.
func askServices(t *testing.T, url string, flood bool) {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, name := range []string{logsvc.ServiceName, appsvc.ServiceName} {
		subject, err := micro.ControlSubject(micro.InfoVerb, name, "")
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, name, func() bool {
			_, err := nc.Request(subject, nil, time.Second)
			return err == nil
		})
		for range 50_000 {
			if !flood {
				break
			}
			if err := nc.PublishRequest(subject, "unread", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := nc.FlushTimeout(suite.Patience); err != nil {
		t.Fatal(err)
	}
}

// TestServeStopsWhileNATSHangs: the process ends soon after the flush, and
// says nothing about its own closing, whatever the server does.
func TestServeStopsWhileNATSHangs(t *testing.T) {
	suite.Slow(t, "waits for the time-outs of a server that hangs")
	const flushTimeout = 200 * time.Millisecond
	unflushed := errors.New("stopped with 3 changes unpublished")
	tests := []struct {
		name      string
		fromFirst bool // the server hangs before there is a connection
		flood     bool // the services answer more than the kernel's buffers hold
		run       func(ctx context.Context, nc *nats.Conn) error
		want      error
	}{
		{name: "nothing to flush", run: func(ctx context.Context, _ *nats.Conn) error {
			<-ctx.Done()
			return nil
		}},
		{name: "nothing was flushed", want: unflushed, run: func(ctx context.Context, _ *nats.Conn) error {
			<-ctx.Done()
			<-time.After(flushTimeout)
			return unflushed
		}},
		{name: "no connection yet", fromFirst: true, run: func(ctx context.Context, _ *nats.Conn) error {
			<-ctx.Done()
			return nil
		}},
		{name: "services are stuck in a write", flood: true, run: func(ctx context.Context, _ *nats.Conn) error {
			<-ctx.Done()
			return nil
		}},
		{name: "bridge waits for an answer", want: unflushed, run: func(ctx context.Context, nc *nats.Conn) error {
			<-ctx.Done()
			if _, err := nc.Request("nobody", nil, time.Hour); err == nil {
				return errors.New("got an answer")
			}
			return unflushed
		}},
		// The kernel's buffers are full: the client holds its lock while it writes.
		{name: "bridge is stuck in a write", want: unflushed, run: func(_ context.Context, nc *nats.Conn) error {
			for data := make([]byte, 1<<20); ; {
				if err := nc.Publish("x", data); err != nil {
					return unflushed
				}
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			natsServer := startNATS(t, server.Options{})
			ignore := goleak.IgnoreCurrent()
			proxy := startHangingProxy(t, natsServer.Addr().String())
			if test.fromFirst {
				close(proxy.hung)
			}
			cfg := testConfig(t)
			cfg.NATSEmbedded, cfg.NATS.URLs, cfg.FlushTimeout = false, []string{proxy.url()}, flushTimeout
			core, logs := observer.New(zapcore.InfoLevel)
			var s *serving
			start := make(chan struct{})
			s = startServing(t, cfg, fakeBridge{run: func(ctx context.Context) error {
				<-start
				return test.run(ctx, s.nc)
			}}, zap.New(core))
			if !test.fromFirst {
				waitFor(t, "the connection", s.nc.IsConnected)
				if _, err := s.nc.SubscribeSync("a"); err != nil {
					t.Fatal(err)
				}
				if err := s.nc.Flush(); err != nil {
					t.Fatal(err)
				}
				askServices(t, natsServer.ClientURL(), test.flood)
				close(proxy.hung)
			}
			close(start)
			logs.TakeAll() // what was said while there was news
			s.stop()
			err := s.wait(t) // what hangs without an end of ours takes longer than that
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			for _, entry := range logs.FilterLevelExact(zapcore.WarnLevel).All() {
				if test.fromFirst && entry.Message == "waiting for NATS" {
					continue // a try that ended before the stop
				}
				if !strings.HasPrefix(entry.Message, "NATS does not answer") {
					t.Errorf("got the line %q %v", entry.Message, entry.ContextMap())
				}
			}
			proxy.stop()
			if err := goleak.Find(ignore); err != nil {
				t.Errorf("after the stop: %v", err)
			}
		})
	}
}

// TestServeStopsDuringTheFirstTries: these take seconds for each server that
// hangs, before there is a bridge.
func TestServeStopsDuringTheFirstTries(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, nil
	for range 200 { // together they take longer than the test waits
		proxy := startHangingProxy(t, "")
		close(proxy.hung)
		cfg.NATS.URLs = append(cfg.NATS.URLs, proxy.url())
	}
	core, logs := observer.New(zapcore.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, cfg, zap.New(core), hooks{
			newBridge: func(bridge.Config, *rest.Config, *nats.Conn, *zap.Logger, prometheus.Registerer) (runner, error) {
				return fakeBridge{run: untilDone}, nil
			},
		})
	}()
	waitFor(t, "the first try", func() bool { return logs.FilterMessage("connecting to NATS").Len() == 1 })
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("got %v after a clean stop", err)
		}
	case <-time.After(suite.Patience):
		t.Errorf("the stop waits for all tries; it ended with %v", <-ended)
	}
}
