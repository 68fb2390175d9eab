package accounts_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A project and an auditor read their mirrors with package appwatch. Nothing that it does needs a
// right that they do not have.
func TestAppwatch(t *testing.T) {
	bin, err := testenv.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, "nats.conf", nil)
	s.world = &kubesuite.World{Bin: bin}
	bridge := s.client("bridge")
	js := jetStream(t, bridge)
	for name, subject := range map[string]string{"FLYTE_APPS": "flyte.apps.events.>", "KV_flyte-apps": "$KV.flyte-apps.>"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range mirrorCommands(t) {
		s.command(command)
	}
	previous := ""
	store := func(subject string, kind subjects.EventKind, sequence string) {
		t.Helper()
		h := nats.Header{subjects.CEType: {kind.Type()}, subjects.HeaderAppStatus: {"ACTIVE"}}
		if previous != "" {
			h.Set(subjects.HeaderPreviousSequence, previous)
		}
		if sequence != "" {
			h.Set(subjects.HeaderEventSequence, sequence)
		}
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: h}); err != nil {
			t.Fatal(err)
		}
	}
	for i, project := range []string{"bank", "shop"} {
		store("flyte.apps.events."+project+".production.storefront.created", subjects.Created, "")
		store("$KV.flyte-apps."+project+".production.storefront", subjects.Created, fmt.Sprint(i+1))
	}
	s.mirrored("shop", "FLYTE_APPS", 1)
	s.mirrored("shop", "KV_flyte-apps", 1)
	s.mirrored("auditor", "FLYTE_APPS", 2)
	shop, auditor := s.client("shop"), s.client("auditor")
	readers := map[string]*watched{
		"shop":    watch(t, shop, appwatch.Options{}),
		"latest":  watch(t, shop, appwatch.Options{Project: "shop", Latest: true}),
		"auditor": watch(t, auditor, appwatch.Options{Since: time.Unix(1, 0), NoSnapshot: true}),
	}
	readers["shop"].expect("state shop 2", "mark 2")
	readers["latest"].expect("state shop 2", "mark 2")
	readers["auditor"].expect("event bank 1", "event shop 2", "mark 2")
	for i, project := range []string{"bank", "shop"} {
		previous = fmt.Sprint(i + 1)
		store("flyte.apps.events."+project+".production.storefront.updated", subjects.Updated, "")
	}
	readers["shop"].expect("event shop 4")
	readers["latest"].expect("event shop 4")
	readers["auditor"].expect("event bank 3", "event shop 4")
	for _, r := range readers {
		r.stop()
	}
	for _, c := range []*client{shop, auditor} {
		if err := c.flushed(); err != nil {
			t.Errorf("%s: %v", c.user, err)
		}
	}

	// A user without rights on the API is refused, and the reader ends.
	for _, err := range appwatch.Watch(t.Context(), jetStream(t, s.client("monitor")), appwatch.Options{}) {
		if !errors.Is(err, appwatch.ErrDenied) {
			t.Errorf("monitor: got %v, want %v", err, appwatch.ErrDenied)
		}
	}
}

func jetStream(t *testing.T, c *client) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(c.nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// watched is a reader in a goroutine.
type watched struct {
	t     *testing.T
	lines chan string
	stop  func()
}

func watch(t *testing.T, c *client, opts appwatch.Options) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w, done := &watched{t: t, lines: make(chan string, 100)}, make(chan struct{})
	w.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(w.stop)
	js := jetStream(t, c)
	go func() {
		defer close(done)
		for it, err := range appwatch.Watch(ctx, js, opts) {
			switch {
			case err != nil:
				w.lines <- err.Error()
			case it.Type == appwatch.State || it.Type == appwatch.Event:
				w.lines <- fmt.Sprintf("%s %s %d", it.Type, it.ID.Project, it.Sequence)
			default:
				w.lines <- fmt.Sprintf("%s %d", it.Type, it.Position.Sequence)
			}
		}
	}()
	return w
}

func (w *watched) expect(want ...string) {
	w.t.Helper()
	for _, line := range want {
		select {
		case got := <-w.lines:
			if got != line {
				w.t.Fatalf("got %q, want %q", got, line)
			}
		case <-time.After(suite.Patience):
			w.t.Fatalf("no %q", line)
		}
	}
}
