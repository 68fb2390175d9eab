package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// tap notes every message that the event stream stores, at the moment it does:
// nothing that is purged or expires later is missed. The server itself
// republishes them, so a refused append is not among them.
type tap struct {
	w    *world
	mu   sync.Mutex
	seen []*nats.Msg
}

const tapSubject = "tapped.>"

// tapStream puts a tap on the event stream.
func (w *world) tapStream() *tap {
	w.t.Helper()
	t := &tap{w: w}
	sub := must[*nats.Subscription](w.t)(w.nc.Subscribe(tapSubject, func(msg *nats.Msg) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.seen = append(t.seen, msg)
	}))
	w.t.Cleanup(func() { _ = sub.Unsubscribe() })
	must[any](w.t)(nil, w.nc.Flush())
	w.changeStream(subjects.DefaultStream, func(cfg *jetstream.StreamConfig) {
		cfg.RePublish = &jetstream.RePublish{Source: ">", Destination: tapSubject}
	})
	return t
}

// changeStream changes the configuration of a stream as an operator would.
func (w *world) changeStream(name string, change func(*jetstream.StreamConfig)) {
	w.t.Helper()
	cfg := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), name)).CachedInfo().Config
	change(&cfg)
	must[jetstream.Stream](w.t)(w.js.UpdateStream(w.t.Context(), cfg))
}

// events are those that the stream stored since the tap is there.
func (t *tap) events() []stored {
	t.w.t.Helper()
	t.mu.Lock()
	seen := slices.Clone(t.seen)
	t.mu.Unlock()
	s := must[subjects.Subjects](t.w.t)(subjects.New(subjects.DefaultPrefix))
	var events []stored
	for _, msg := range seen {
		subject := msg.Header.Get("Nats-Subject")
		id, kind, err := s.ParseEvent(subject)
		if err != nil {
			t.w.t.Fatal(err)
		}
		sequence := must[uint64](t.w.t)(strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64))
		payload := &appv1.WatchResponse{}
		must[any](t.w.t)(nil, protojson.Unmarshal(msg.Data, payload))
		raw := &jetstream.RawStreamMsg{Subject: subject, Sequence: sequence, Header: msg.Header, Data: msg.Data}
		events = append(events, stored{id: id, kind: kind, sequence: sequence, msg: raw, payload: payload})
	}
	return events
}

// waitFor waits until the stream has stored exactly the events want, written
// as "kind app", whatever the order of different apps.
func (t *tap) waitFor(want ...string) []stored {
	t.w.t.Helper()
	var events []stored
	eventually(t.w.t, "the stream stored "+strings.Join(want, ", "), func() error {
		events = t.events()
		return sameEvents(events, want)
	})
	return events
}

// sameEvents compares events with what they should be, written as "kind app":
// per app in order, different apps in any.
func sameEvents(events []stored, want []string) error {
	apps := func(lines []string) map[string]string {
		m := map[string]string{}
		for _, line := range lines {
			kind, app, _ := strings.Cut(line, " ")
			m[app] += kind + " "
		}
		return m
	}
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%s %s", e.kind, e.id.Name))
	}
	if len(got) < len(want) {
		return fmt.Errorf("it stored %s", strings.Join(got, ", "))
	}
	have, need := apps(got), apps(want)
	for _, lines := range []map[string]string{have, need} {
		for app := range lines {
			if have[app] != need[app] {
				return fmt.Errorf("%w: %s has %q, want %q", errFatal, app, have[app], need[app])
			}
		}
	}
	return nil
}

// expired waits until the stream holds nothing any more.
func (w *world) expired() {
	w.t.Helper()
	eventually(w.t, "the stream's events have expired", func() error {
		state := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), subjects.DefaultStream)).CachedInfo().State
		if state.Msgs != 0 {
			return fmt.Errorf("it holds %d", state.Msgs)
		}
		return nil
	})
}

// converged waits until the bucket equals the cluster and the end of events.
func (w *world) converged(events []stored) {
	w.t.Helper()
	eventually(w.t, "bucket equals cluster", func() error { return w.bucketDrift(w.config().App, events) })
}

// read reads the stream's events after a sequence, as events does, but passes
// over the sequences in skip and over what is not there any more.
func (w *world) read(after uint64, skip ...uint64) []stored {
	w.t.Helper()
	s := must[subjects.Subjects](w.t)(subjects.New(subjects.DefaultPrefix))
	stream := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), subjects.DefaultStream))
	state := stream.CachedInfo().State
	var events []stored
	for seq := max(after+1, state.FirstSeq); seq <= state.LastSeq; seq++ {
		if slices.Contains(skip, seq) {
			continue
		}
		msg, err := stream.GetMsg(w.t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		must[any](w.t)(nil, err)
		id, kind, err := s.ParseEvent(msg.Subject)
		must[any](w.t)(nil, err)
		payload := &appv1.WatchResponse{}
		if err := protojson.Unmarshal(msg.Data, payload); err != nil {
			w.t.Fatalf("sequence %d: %v", seq, err)
		}
		events = append(events, stored{id: id, kind: kind, sequence: seq, msg: msg, payload: payload})
	}
	return events
}

// waitRead waits until read gives exactly the events want, written as "kind app".
func (w *world) waitRead(skip []uint64, want ...string) []stored {
	w.t.Helper()
	var events []stored
	eventually(w.t, "the stream holds "+strings.Join(want, ", "), func() error {
		events = w.read(0, skip...)
		return sameEvents(events, want)
	})
	return events
}

// allSynthesized checks the mark of every event; some carry it only if found
// by comparing.
func allSynthesized(t interface {
	Helper()
	Errorf(string, ...any)
}, events []stored, want bool,
) {
	t.Helper()
	for _, e := range events {
		if got := e.header(subjects.HeaderSynthesized) == subjects.FlagTrue; got != want {
			t.Errorf("sequence %d (%s %s): synthesized is %v, want %v", e.sequence, e.kind, e.id, got, want)
		}
	}
}
