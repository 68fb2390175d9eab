package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { suite.Main(m, func() error { return nil }) }

// done are the events that workers have handled.
type done struct {
	mu    sync.Mutex
	texts []string
}

func (d *done) add(msg jetstream.Msg) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.texts = append(d.texts, string(msg.Data()))
	return nil
}

func (d *done) waitFor(t *testing.T, n int) {
	t.Helper()
	suite.Eventually(t, suite.Patience, "the workers handle events", func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.texts) != n {
			return fmt.Errorf("%d of %d: %q", len(d.texts), n, d.texts)
		}
		return nil
	})
}

func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// stream makes the stream, and returns a function that appends n events.
func stream(t *testing.T, url string) func(n int) {
	t.Helper()
	js := connect(t, url)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}}); err != nil {
		t.Fatal(err)
	}
	return func(n int) {
		t.Helper()
		for i := range n {
			if _, err := js.Publish(t.Context(), "flyte.apps.events.shop.production.x.updated", fmt.Append(nil, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// start runs a worker until the end of the test. It may not end before.
func start(t *testing.T, js jetstream.JetStream, do func(jetstream.Msg) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := work(ctx, js, suite.Patience, do)
		if ctx.Err() == nil {
			err = fmt.Errorf("it ended early: %w", err)
		}
		ended <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A worker that is busy holds no event but the one that it works at.
func TestBusyWorkerHoldsOneEvent(t *testing.T) {
	t.Parallel()
	url := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
	publish := stream(t, url)
	busy, release := make(chan struct{}, 1), make(chan struct{})
	start(t, connect(t, url), func(jetstream.Msg) error {
		busy <- struct{}{}
		<-release
		return nil
	})
	t.Cleanup(func() { close(release) }) // before the worker has to end
	publish(10)
	<-busy
	var others done
	start(t, connect(t, url), others.add)
	others.waitFor(t, 9)
}

// output collects what is logged.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// A worker goes on after a time in which the server sent nothing.
func TestServerFallsSilent(t *testing.T) {
	suite.Slow(t, "waits for missing heartbeats")
	t.Parallel()
	var logged output
	log.SetOutput(&logged)
	srv := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	publish := stream(t, srv.ClientURL())
	var silent atomic.Bool
	through := suite.Wire(t, srv.Addr().String(), 0, func([]byte) bool { return silent.Load() })
	var events done
	start(t, connect(t, through), events.add)
	publish(1)
	events.waitFor(t, 1)
	silent.Store(true)
	suite.Eventually(t, suite.Patience, "the worker misses heartbeats", func() error {
		logged.mu.Lock()
		defer logged.mu.Unlock()
		if !strings.Contains(logged.buf.String(), jetstream.ErrNoHeartbeat.Error()) {
			return fmt.Errorf("it has logged %q", logged.buf.String())
		}
		return nil
	})
	silent.Store(false)
	publish(1)
	events.waitFor(t, 2)
}
