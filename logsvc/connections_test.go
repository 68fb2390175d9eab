package logsvc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// Requests arrive on one connection, what streams listen to on another. The service ends
// with an error when either is closed for good.
func TestConnections(t *testing.T) {
	t.Parallel()
	for _, closed := range []string{"requests", "streams"} {
		t.Run(closed, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, &server.Options{})
			requests, streams, reader := dial(t, s.ClientURL()), dial(t, s.ClientURL()), dial(t, s.ClientURL())
			cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 10, InboxPrefix: "_INBOX", Version: "1.2.3"}
			service, err := logsvc.New(cfg, &written{replicas: []string{"a"}, run: forever}, requests, streams, zaptest.NewLogger(t), prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- service.Run(ctx) }()
			b := &bench{t: t}
			b.eventually("the service listens", func() error { return listens(reader, time.Second) })
			if n := streams.NumSubscriptions(); n != 0 {
				t.Errorf("%d subscriptions for requests are on the connection of the streams", n)
			}
			names, err := subjects.New(cfg.Prefix)
			if err != nil {
				t.Fatal(err)
			}
			subject, err := names.Logs(subjects.LogTail, subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"})
			if err != nil {
				t.Fatal(err)
			}
			inbox := reader.NewInbox()
			if _, err := reader.Subscribe(inbox, func(*nats.Msg) {}); err != nil {
				t.Fatal(err)
			}
			if err := reader.PublishRequest(subject, inbox, nil); err != nil {
				t.Fatal(err)
			}
			b.eventually("a stream listens to acknowledgements and its stop", func() error {
				if n := streams.NumSubscriptions(); n != 2 {
					return fmt.Errorf("%d subscriptions", n)
				}
				return nil
			})
			map[string]*nats.Conn{"requests": requests, "streams": streams}[closed].Close()
			if err := <-done; !errors.Is(err, nats.ErrConnectionClosed) {
				t.Errorf("Run returned %v, want %v", err, nats.ErrConnectionClosed)
			}
		})
	}
}

// All logs together are read at the rate of the configuration, and come whole.
func TestKubernetesRate(t *testing.T) {
	const perSecond, lines = 128 << 10, 1000
	p := newPlace(t)
	k := p.kubernetes(func(c *logsvc.KubernetesConfig) { c.MaxBytesPerSecond = perSecond })
	a := p.newApp("rate")
	var want []string
	for i := range lines {
		want = append(want, fmt.Sprintf("%04d %s", i, strings.Repeat("x", 100)))
	}
	pods := []*testenv.Pod{a.run("00001"), a.run("00001")}
	for _, pod := range pods {
		pod.Write(want...)
	}
	began := time.Now()
	var reads sync.WaitGroup
	for _, pod := range pods {
		reads.Go(func() {
			r := read(t, k, logsvc.Query{App: a.id, Tail: -1, Replica: pod.Name(), Follow: logsvc.FollowNever})
			r.end()
			if got := r.of(pod); !slices.Equal(got, want) {
				t.Errorf("%d lines of %s, want %d", len(got), pod.Name(), lines)
			}
		})
	}
	reads.Wait()
	// 64 KiB may come at once. A lower bound holds on any machine.
	if took, least := time.Since(began), time.Duration(2*lines*len(want[0])-(64<<10))*time.Second/perSecond; took < least {
		t.Errorf("%d bytes came within %s, want at least %s", 2*lines*len(want[0]), took, least)
	}
}
