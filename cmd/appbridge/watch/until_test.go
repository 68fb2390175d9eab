package watch_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const search = "shop/production/search"

var searchOnly = appwatch.Options{Project: "shop", Domain: "production", App: "search"}

// deployed are the steps of an app that Knative brings up, and of one that is deployed again: the
// first state of the new generation has the status of the old one.
func deployed() (first, second []step) {
	created := step{app: search, kind: subjects.Created, generation: 1, version: 10, image: "search:1"}
	pending := step{app: search, kind: subjects.Updated, status: "PENDING", generation: 1, version: 11, image: "search:1", since: 100}
	active := step{app: search, kind: subjects.Updated, status: "ACTIVE", generation: 1, version: 12, image: "search:1", since: 95, revision: "search-00001"}
	stale := step{app: search, kind: subjects.Updated, status: "ACTIVE", generation: 2, version: 20, image: "search:2", since: 95, revision: "search-00001"}
	again := step{app: search, kind: subjects.Updated, status: "PENDING", generation: 2, version: 21, image: "search:2", since: 50, revision: "search-00001"}
	ready := step{app: search, kind: subjects.Updated, status: "ACTIVE", generation: 2, version: 22, image: "search:2", since: 45, revision: "search-00002"}
	return []step{created, pending, active}, []step{stale, again, ready}
}

func with(s step, change func(*step)) step {
	change(&s)
	return s
}

// join leaves the slice as it is.
func join(steps []step, more ...step) []step { return slices.Concat(steps, more) }

func failed(s step) step {
	return with(s, func(s *step) { s.status, s.message = "FAILED", "RevisionFailed: no such\x1b image" })
}

// A watch that waits ends with the state that is wanted, and with no state from before the deploy.
func TestUntil(t *testing.T) {
	t.Parallel()
	first, second := deployed()
	gone := step{app: search, kind: subjects.Deleted, generation: 1, version: 13}
	stopped := step{app: search, kind: subjects.Updated, status: "STOPPED", generation: 2, version: 20, image: "search:1", since: 95}
	restarted := step{app: search, kind: subjects.Updated, status: "ACTIVE", generation: 3, version: 30, image: "search:1", since: 95}
	for _, test := range []struct {
		name  string
		past  []step // before the watch begins
		until watch.Until
		wait  []step // while it waits
		more  []step // with which it ends; none: it has ended before
		err   error
		text  string // in the error
	}{
		{name: "it is so already", past: first, until: watch.Until{Status: "ACTIVE"}},
		{name: "it becomes so", past: first[:2], until: watch.Until{Status: "ACTIVE"}, more: first[2:]},
		{name: "the app is created", until: watch.Until{Status: "ACTIVE"}, wait: first[:2], more: first[2:]},
		{name: "generation", past: first, until: watch.Until{Status: "ACTIVE", Generation: 2}, wait: second[:2], more: second[2:]},
		{name: "generation, begun behind the deploy", past: join(first, second[0]), until: watch.Until{Status: "ACTIVE", Generation: 2}, wait: second[1:2], more: second[2:]},
		{name: "generation, begun at the end", past: join(first, second...), until: watch.Until{Status: "ACTIVE", Generation: 2}},
		{name: "generation, updates were merged", past: join(first, second[0]), until: watch.Until{Status: "ACTIVE", Generation: 2}, more: second[2:]},
		{
			name: "generation, the same revision serves", past: join(first, second[0]), until: watch.Until{Status: "ACTIVE", Generation: 2},
			more: []step{with(second[2], func(s *step) { s.revision = "search-00001" })},
		},
		{
			name: "generation, scaled meanwhile", past: first, until: watch.Until{Status: "ACTIVE", Generation: 2},
			wait: []step{second[0], with(second[0], func(s *step) { s.replicas, s.version = 2, 20 }), second[1]}, more: second[2:],
		},
		{name: "version", past: join(first, second[0]), until: watch.Until{Status: "ACTIVE", ResourceVersion: "20"}, wait: second[1:2], more: second[2:]},
		{name: "uid", past: first, until: watch.Until{Status: "ACTIVE", UID: "new"}, wait: []step{gone}, more: []step{
			{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1, version: 14, uid: "new"},
		}},
		{name: "a restart of a stopped app", past: join(first, stopped), until: watch.Until{Status: "ACTIVE", Generation: 3}, wait: []step{restarted}, more: []step{
			with(restarted, func(s *step) { s.version, s.since = 31, 5 }),
		}},
		{name: "failed", past: first[:2], until: watch.Until{Status: "ACTIVE"}, more: []step{failed(first[2])}, err: watch.ErrFailed, text: "is FAILED: RevisionFailed: no such"},
		{name: "failed before", past: join(first[:2], failed(first[2])), until: watch.Until{Status: "ACTIVE"}, err: watch.ErrFailed},
		{
			name: "failed before the deploy", past: join(first[:2], failed(first[2]), failed(second[0])), until: watch.Until{Status: "ACTIVE", Generation: 2},
			wait: second[1:2], more: second[2:],
		},
		{name: "failed is waited for", past: first[:2], until: watch.Until{Status: "FAILED"}, more: []step{failed(first[2])}},
		{name: "failed is allowed", past: first[:2], until: watch.Until{Status: "ACTIVE", AllowFailed: true}, wait: []step{failed(first[2])}, more: []step{with(first[2], func(s *step) { s.version = 13 })}},
		{name: "stopped", past: first, until: watch.Until{Status: "STOPPED", Generation: 2}, more: []step{stopped}},
		{name: "deleted meanwhile", past: first[:2], until: watch.Until{Status: "ACTIVE"}, more: []step{gone}, err: watch.ErrGone, text: "shop/production/search was deleted"},
		{name: "an older delete", past: first, until: watch.Until{Status: "ACTIVE", ResourceVersion: "14"}, wait: []step{gone}, more: []step{
			{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1, version: 15, uid: "new"},
		}},
		{name: "delete is waited for", past: first, until: watch.Until{Status: "DELETED"}, more: []step{gone}},
		{name: "deleted before", past: join(first, gone), until: watch.Until{Status: "DELETED"}},
		{name: "deleted before, with a version", past: join(first, gone), until: watch.Until{Status: "DELETED", ResourceVersion: "12"}},
		{name: "there never was one", until: watch.Until{Status: "DELETED"}},
		{name: "another took its place", past: first, until: watch.Until{Status: "DELETED", UID: "old"}},
		{name: "failed while a delete is waited for", past: first, until: watch.Until{Status: "DELETED"}, wait: []step{failed(first[2])}, more: []step{gone}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			p := newPublisher(t, s.ClientURL())
			for _, step := range test.past {
				p.publish(step)
			}
			r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: searchOnly, Until: &test.until, Timeout: 5 * time.Minute})
			if len(test.wait)+len(test.more) > 0 {
				// It has to have seen the past before the rest counts as news.
				ready(t, r, len(test.past) > 0)
			}
			for _, step := range test.wait {
				p.publish(step)
				r.prints(eventText(step))
				r.goesOn("a step")
			}
			for _, step := range test.more {
				p.publish(step)
			}
			if err := r.end(); !errors.Is(err, test.err) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q; printed\n%s%s", err, test.err, test.text, r.out, r.notes)
			}
		})
	}
}

// ready waits until a watch has read the past.
func ready(t *testing.T, r *running, app bool) {
	t.Helper()
	if app {
		r.prints(search)
		return
	}
	waitNote(t, r, "no app "+search+" yet")
}

// eventText is what is printed of a step.
func eventText(s step) string {
	text := string(s.kind)
	if s.kind == subjects.Deleted {
		return text + "  last status"
	}
	return text
}

func TestUntilTimeout(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	p.publish(step{app: search, kind: subjects.Created, status: "PENDING", generation: 1, message: "ContainerMissing: waiting"})
	growing(t, ": shop/production/search is PENDING: ContainerMissing: waiting", func(timeout time.Duration) error {
		err := start(t, dial(t, s.ClientURL()), watch.Options{Reader: searchOnly, Until: &watch.Until{Status: "ACTIVE"}, Timeout: timeout}).end()
		if !errors.Is(err, watch.ErrTimeout) || !strings.HasPrefix(err.Error(), "timed out after "+timeout.String()) {
			t.Fatalf("got %v", err)
		}
		return err
	})
}

func TestUntilInterrupted(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	newPublisher(t, s.ClientURL())
	r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: searchOnly, Until: &watch.Until{Status: "ACTIVE"}, Timeout: time.Hour})
	ready(t, r, false)
	r.stop()
	if err := r.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The events before a deploy may be removed: what was before is in the event itself.
func TestUntilAfterRetention(t *testing.T) {
	t.Parallel()
	first, second := deployed()
	for _, test := range []struct {
		name string
		past []step
		left int // events that the stream still has
		more []step
	}{
		{"the deploy is the first event", join(first, second[0]), 1, second[1:]},
		{"nothing is left of a deploy long ago", join(first, second...), 0, nil},
		{"a scaled app", join(join(first, second...), with(second[2], func(s *step) { s.replicas = 3 })), 1, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			p := newPublisher(t, s.ClientURL())
			sequence := uint64(0)
			for _, step := range test.past {
				sequence = p.publish(step)
			}
			stream, err := p.js.Stream(t.Context(), subjects.DefaultStream)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Purge(t.Context(), purgeBelow(sequence+1-uint64(test.left))); err != nil {
				t.Fatal(err)
			}
			r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: searchOnly, Until: &watch.Until{Status: "ACTIVE", Generation: 2}, Timeout: 5 * time.Minute})
			r.prints(search)
			for i, step := range test.more {
				select {
				case <-r.done:
					t.Fatalf("it ended with %v before step %d", r.err, i)
				default:
				}
				p.publish(step)
			}
			if err := r.end(); err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What is left of an app in a stream with sources does not follow from the sequences of the origin.
func TestUntilInAStreamWithSources(t *testing.T) {
	t.Parallel()
	first, second := deployed()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	c := newCentral(p)
	for range 10 {
		c.noise()
	}
	for _, step := range join(first, second[0]) {
		p.publish(step)
		c.count++
	}
	if err := c.stream().Purge(t.Context(), purgeBelow(11)); err != nil {
		t.Fatal(err)
	}
	reader := searchOnly
	reader.Stream = "CENTRAL"
	r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: reader, Until: &watch.Until{Status: "ACTIVE", Generation: 2}, Timeout: suite.Patience})
	r.prints(search)
	p.publish(second[1])
	r.prints("PENDING")
	p.publish(second[2])
	if err := r.end(); err != nil {
		t.Errorf("got %v", err)
	}
}
