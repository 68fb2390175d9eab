package appwatch_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// consumers are the names of the consumers of the stream.
func (w *writer) consumers() []string {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), w.stream)
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	list := stream.ConsumerNames(w.t.Context())
	for name := range list.Name() {
		names = append(names, name)
	}
	if list.Err() != nil {
		w.t.Fatal(list.Err())
	}
	return names
}

// noConsumers waits until the stream and the bucket have no consumer.
func (w *writer) noConsumers() {
	w.t.Helper()
	for _, name := range []string{w.stream, subjects.BucketStream(w.bucket)} {
		suite.Eventually(w.t, patience, "the consumers are removed", func() error {
			stream, err := w.js.Stream(w.t.Context(), name)
			if err == nil && stream.CachedInfo().State.Consumers > 0 {
				err = fmt.Errorf("%s has %d", name, stream.CachedInfo().State.Consumers)
			}
			return err
		})
	}
}

// reports waits until a retry has this reason.
func (r *reader) reports(want string) {
	r.t.Helper()
	suite.Eventually(r.t, patience, "the reader reports "+want, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, err := range r.reason {
			if err != nil && strings.Contains(err.Error(), want) {
				return nil
			}
		}
		return fmt.Errorf("got %v, error %w", r.reason, r.err)
	})
}

// An operator deletes the consumer of a reader, which makes another one.
func TestConsumerDeleted(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	r := watch(t, w.js, appwatch.Options{})
	r.expect("mark 0")
	for sequence := uint64(1); sequence <= 5; sequence++ {
		for _, name := range w.consumers() {
			if err := w.js.DeleteConsumer(t.Context(), w.stream, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
				t.Fatal(err)
			}
		}
		w.event("shop/production/a", map[bool]subjects.EventKind{true: subjects.Created, false: subjects.Updated}[sequence == 1], "ACTIVE")
		if it := r.next(1)[0]; it.Type != appwatch.Event || it.Sequence != sequence {
			t.Fatalf("got %q, want event %d", line(it), sequence)
		}
	}
	r.stop()
	w.noConsumers()
}

// A stream that takes no more consumers is waited for.
func TestMaxConsumers(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	cfg := streamConfig()
	cfg.Name, cfg.Subjects, cfg.MaxConsumers = "LIMITED", nil, 1
	cfg.Mirror = &jetstream.StreamSource{Name: w.stream}
	stream, err := w.js.CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	other, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "other"})
	if err != nil {
		t.Fatal(err)
	}
	r := watch(t, w.js, appwatch.Options{Stream: cfg.Name})
	r.reports("maximum consumers limit")
	if err := stream.DeleteConsumer(t.Context(), other.CachedInfo().Name); err != nil {
		t.Fatal(err)
	}
	r.expect("state shop/production/a created 1", "mark 1")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a updated 2")
}

// A loop that is left, or whose context ends, leaves no consumer in any phase.
func TestLeftInEachPhase(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	for _, app := range []string{"a", "b", "c"} {
		w.event("shop/production/"+app, subjects.Created, "ACTIVE")
	}
	from := appwatch.Position{StreamID: streamID, Sequence: 0}
	for _, phase := range []struct {
		name string
		opts appwatch.Options
		at   func(appwatch.Item) bool
		live bool
	}{
		{"snapshot", appwatch.Options{}, func(it appwatch.Item) bool { return it.Type == appwatch.State }, false},
		{"mark", appwatch.Options{}, func(it appwatch.Item) bool { return it.Type == appwatch.Mark }, false},
		{"catch up", appwatch.Options{From: from}, func(it appwatch.Item) bool { return it.Type == appwatch.Event }, false},
		{"live", appwatch.Options{}, func(it appwatch.Item) bool { return it.Type == appwatch.Event }, true},
	} {
		for _, latest := range []bool{false, true} {
			for _, cancelled := range []bool{false, true} {
				ctx, cancel := context.WithCancel(t.Context())
				phase.opts.Latest = latest
				after := 0
				for it, err := range appwatch.Watch(ctx, w.js, phase.opts) {
					if err != nil {
						t.Errorf("%s: %v", phase.name, err)
					}
					if ctx.Err() != nil {
						after++
						continue
					}
					if phase.live && it.Type == appwatch.Mark {
						w.event("shop/production/a", subjects.Updated, "ACTIVE")
					}
					if phase.at(it) {
						if !cancelled {
							break
						}
						cancel()
					}
				}
				cancel()
				if after > 0 {
					t.Errorf("%s, latest %v: %d items after the end of the context", phase.name, latest, after)
				}
				w.noConsumers()
			}
		}
	}
}

// The context ends before the first look, and while the reader tries again.
func TestCancelledWhileRetrying(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for it, err := range appwatch.Watch(ended, w.js, appwatch.Options{}) {
		t.Errorf("got %q, %v", line(it), err)
	}
	for _, opts := range []appwatch.Options{{Stream: "MISSING"}, {Bucket: "missing"}, {Stream: "MISSING", Latest: true}} {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		opts.OnRetry = func(error) {
			if tries++; tries == 3 {
				cancel()
			}
		}
		for it, err := range appwatch.Watch(ctx, w.js, opts) {
			t.Errorf("got %q, %v", line(it), err)
		}
		cancel()
		if tries != 3 {
			t.Errorf("OnRetry was called %d times", tries)
		}
	}
	w.noConsumers()
}

// Loops over one sequence at the same time do not disturb each other.
func TestTwoLoops(t *testing.T) {
	t.Parallel()
	for _, latest := range []bool{false, true} {
		w := newWriter(t, jetStream(t).ClientURL())
		const events = 300
		w.event("shop/production/a", subjects.Created, "ACTIVE")
		all := appwatch.Watch(t.Context(), w.js, appwatch.Options{Latest: latest})
		read := func() error {
			next, stop := iter.Pull2(all)
			defer stop()
			for at := uint64(1); at < events; {
				it, err, ok := next()
				switch {
				case err != nil || !ok:
					return fmt.Errorf("at %d: %w, %v", at, err, ok)
				case it.Type != appwatch.Event:
					continue
				case it.Sequence != at+1+uint64(it.Skipped): //nolint:gosec // a count
					return fmt.Errorf("%q came after %d", line(it), at)
				}
				at = it.Sequence
			}
			return nil
		}
		results := make(chan error, 2)
		for range cap(results) {
			go func() { results <- read() }()
		}
		suite.Eventually(t, patience, "two consumers", func() error {
			if n := len(w.consumers()); n != 2 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		for range events - 1 {
			w.event("shop/production/a", subjects.Updated, "ACTIVE")
		}
		if err := errors.Join(<-results, <-results); err != nil {
			t.Error(err)
		}
		w.noConsumers()
	}
}

// A right that is missing ends the loop.
func TestDenied(t *testing.T) {
	t.Parallel()
	api, bucket := `publish: {deny: "`+subjects.JetStreamAPI(""), subjects.BucketStream(subjects.DefaultBucket)
	owed := appwatch.Options{From: appwatch.Position{StreamID: streamID, Sequence: 1, Owed: true}}
	for _, tc := range []struct {
		right string
		opts  appwatch.Options
	}{
		{api + `STREAM.INFO.*"}`, appwatch.Options{}},
		{api + `STREAM.MSG.GET.*"}`, appwatch.Options{}},
		{api + `CONSUMER.CREATE.>"}`, appwatch.Options{}},
		{api + `CONSUMER.MSG.NEXT.>"}`, appwatch.Options{}},
		{api + "STREAM.INFO." + bucket + `"}`, owed}, // only the Restart needs it
		{`subscribe: {deny: "_INBOX.>"}`, appwatch.Options{}},
	} {
		t.Run(tc.right, func(t *testing.T) {
			t.Parallel()
			s := suite.NATSConfigured(t, fmt.Sprintf(`
				jetstream: {store_dir: %q}
				authorization: {users: [
					{user: all, password: all}
					{user: some, password: some, permissions: {%s}}
				]}`, t.TempDir(), tc.right))
			host := strings.TrimPrefix(s.ClientURL(), "nats://")
			w := newWriter(t, "nats://all:all@"+host)
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			_, js := dial(t, "nats://some:some@"+host)
			r := watch(t, js, tc.opts)
			suite.Eventually(t, patience, "the loop ends", func() error {
				select {
				case <-r.done:
					return nil
				default:
					r.mu.Lock()
					defer r.mu.Unlock()
					return fmt.Errorf("retries: %d, the last %v", len(r.reason), r.reason[max(0, len(r.reason)-1):])
				}
			})
			if !errors.Is(r.err, appwatch.ErrDenied) {
				t.Errorf("got %v", r.err)
			}
			w.noConsumers()
		})
	}
}
