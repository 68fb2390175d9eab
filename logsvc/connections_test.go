package logsvc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Requests arrive on one connection, what streams listen to on another. The service ends
// with an error when either is closed for good.
func TestConnections(t *testing.T) {
	t.Parallel()
	for _, closed := range []string{"requests", "streams"} {
		t.Run(closed, func(t *testing.T) {
			t.Parallel()
			s := suite.NATS(t, nil)
			requests, streams, reader := dial(t, s.ClientURL()), dial(t, s.ClientURL()), dial(t, s.ClientURL())
			cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 10, InboxPrefix: "_INBOX", Version: "1.2.3"}
			service, err := logsvc.New(cfg, &written{replicas: []string{"a"}, run: forever}, requests, streams, zaptest.NewLogger(t), prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			service.BePatient(patience)
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
			select {
			case err := <-done:
				if !errors.Is(err, nats.ErrConnectionClosed) {
					t.Errorf("Run returned %v, want %v", err, nats.ErrConnectionClosed)
				}
			case <-time.After(patience):
				t.Fatal("Run does not return")
			}
		})
	}
}
