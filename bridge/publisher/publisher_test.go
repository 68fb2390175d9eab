package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestPublisherKeepsOrder(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observeAll(r.pub, 400, 1, 8)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	r.checkStory(400, 8)
	if got := r.pub.known.Checkpoint().Stream; got != 3200 {
		t.Errorf("acknowledged up to %d, want 3200", got)
	}
}

// Every acknowledgement comes too late, so the outcome of every event is read from the stream.
func TestPublisherWithoutAnswers(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	var err error
	if r.pub.js, err = jetstream.New(r.nc, jetstream.WithPublishAsyncTimeout(time.Nanosecond)); err != nil {
		t.Fatal(err)
	}
	observeAll(r.pub, 100, 1, 5)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	r.checkStory(100, 5)
}

// The stream is purged between the events of every app.
func TestPublisherAfterPurge(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observeAll(r.pub, 300, 1, 1)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	if err := r.stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := r.after(r.pub)
	observeAll(p, 300, 2, 3)
	if err := r.publish(p); err != nil {
		t.Fatal(err)
	}
	if got := r.count(); got != 600 {
		t.Errorf("the stream holds %d events, want 600", got)
	}
	m, err := store.LastMessage(t.Context(), r.js, subjects.DefaultStream, "flyte.apps.events.p.d.a7.*")
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Header.Get(subjects.HeaderMsgID); !strings.HasPrefix(got, "uid-a7/3/") || m.Header.Get(subjects.HeaderPreviousSequence) == "" {
		t.Errorf("the last event of an app is %s", got)
	}
}

// An app whose newest event was removed goes on after what is left.
func TestPublisherAfterLastRemoved(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observe(r.pub, "a", "1", true)
	observe(r.pub, "a", "2", false)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	if err := r.stream.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	p := r.next()
	p.queue.Load(appID("a"), publishedOf(r.pub, "a"))
	observe(p, "a", "3", false)
	if err := r.publish(p); err != nil {
		t.Fatal(err)
	}
	m, err := store.MessageAt(t.Context(), r.js, subjects.DefaultStream, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Header.Get(subjects.HeaderPreviousSequence); got != "2" || r.count() != 2 {
		t.Errorf("the event at 3 follows %s; the stream holds %d messages", got, r.count())
	}
}

// Another publisher has published the very same event: it counts as stored.
func TestPublisherAfterSameEvent(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	late := r.next() // believes that the stream is empty
	observe(r.pub, "a", "1", true)
	observe(late, "a", "1", true)
	if err := errors.Join(r.publish(r.pub), r.publish(late)); err != nil {
		t.Fatal(err)
	}
	if got := publishedOf(late, "a"); got.Previous() != 1 || r.count() != 1 {
		t.Errorf("the record is %+v; the stream holds %d messages", got, r.count())
	}
}

// An event is handed over only with the stream's own acknowledgement of it, at the sequence that
// was announced. One that is found in the stream may be of another writer.
func TestPublisherHandsOver(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	late := r.next() // believes that the stream is empty
	var got []string
	for name, p := range map[string]*Publisher{"first": r.pub, "late": late} {
		p.cfg.Sent = func(sequence uint64) { got = append(got, fmt.Sprint(name, " sends ", sequence)) }
		p.cfg.Stored = func(sequence uint64, ev *app.Event) {
			what := "finds"
			if ev != nil {
				what = "has " + ev.Msg.Header.Get(subjects.HeaderMsgID)
				if ev.Record.Sequence != sequence {
					t.Errorf("the record of %d has sequence %d", sequence, ev.Record.Sequence)
				}
			}
			got = append(got, fmt.Sprint(name, " ", what, " ", sequence))
		}
		observe(p, "a", "1", true)
		if p == late {
			observe(p, "b", "2", true)
		}
	}
	if err := errors.Join(r.publish(r.pub), r.publish(late)); err != nil {
		t.Fatal(err)
	}
	// The second event of late is on its way before or after it finds the first.
	want := [][]string{
		{"first sends 1", "first has uid-a/1/0 1", "late sends 1", "late sends 2", "late finds 1", "late has uid-b/2/0 2"},
		{"first sends 1", "first has uid-a/1/0 1", "late sends 1", "late finds 1", "late sends 2", "late has uid-b/2/0 2"},
	}
	if !slices.Equal(got, want[0]) && !slices.Equal(got, want[1]) {
		t.Errorf("got %q, want one of %q", got, want)
	}
}

// A publisher that runs into events of another one ends with them, and appends nothing.
func TestPublisherAfterOther(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		queue func(late *Publisher)
	}{
		{"an event of the same app", func(late *Publisher) { observe(late, "a", "2", true) }},
		{"an event of another app", func(late *Publisher) { observe(late, "b", "1", true) }},
		{"the same version with other replicas", func(late *Publisher) {
			late.queue.Add(appID("a"), app.NewUpsert(app.State{Service: serviceOf("a", "1"), Revision: testRevision("3", 3)}, true))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newStage(t)
			late := r.next()
			observe(r.pub, "a", "1", true)
			if err := r.publish(r.pub); err != nil {
				t.Fatal(err)
			}
			test.queue(late)
			var other *OtherWriterError
			if err := r.publish(late); !errors.As(err, &other) || other.Found[appID("a")] == nil || r.count() != 1 {
				t.Errorf("got %v (%+v); the stream holds %d messages", err, other, r.count())
			}
		})
	}
}

// A deposed publisher appends nothing at all, not even of an app that its successor did not touch.
func TestPublisherManyOthers(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	late := r.next()
	observeAll(r.pub, farBehind+1, 1, 1)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	observe(late, "b", "1", true)
	if err := r.publish(late); !errors.As(err, new(*OtherWriterError)) || r.count() != farBehind+1 {
		t.Errorf("got %v; the stream holds %d messages", err, r.count())
	}
}

// Messages that are no events neither stop a publisher nor end the session.
func TestPublisherAfterForeignMessages(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observe(r.pub, "a", "1", true)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	p := r.after(r.pub)
	for _, subject := range []string{"p.d.a.updated", "p.d.b.created", "nonsense", "lost", "notice"} {
		if _, err := r.js.Publish(t.Context(), "flyte.apps.events."+subject, []byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	observe(p, "a", "2", false)
	observe(p, "b", "1", true)
	observe(p, "c", "1", true)
	if err := r.publish(p); err != nil {
		t.Fatal(err)
	}
	if got := r.count(); got != 9 {
		t.Errorf("the stream holds %d messages, want 9", got)
	}
	if a, b := publishedOf(p, "a"), publishedOf(p, "b"); a.ResourceVersion != "2" || b.ResourceVersion != "1" {
		t.Errorf("published %+v and %+v", a, b)
	}
}

// The stream remembers the id of an event that was removed before anything was made of it. The same
// state is published under another id.
func TestPublisherDuplicateOfRemoved(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observe(r.pub, "a", "1", true)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	if err := r.stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := r.next() // of a bridge that knows nothing of it
	observe(p, "a", "1", true)
	observe(p, "b", "1", true)
	if err := r.publish(p); err != nil {
		t.Fatal(err)
	}
	m, err := store.LastMessage(t.Context(), r.js, subjects.DefaultStream, "flyte.apps.events.p.d.a.*")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Header.Get(subjects.HeaderMsgID), "uid-a/1/1"; got != want || r.count() != 2 {
		t.Errorf("the event has id %s, want %s; the stream holds %d messages", got, want, r.count())
	}
}

// A stream that ends before what it acknowledged refuses the next append: no sequence comes twice.
func TestPublisherLostTail(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observeAll(r.pub, 20, 1, 1)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	cfg := r.stream.CachedInfo().Config
	if err := r.js.DeleteStream(t.Context(), cfg.Name); err != nil {
		t.Fatal(err)
	}
	suite.Recreate(t, r.js, cfg)
	p := r.after(r.pub)
	observe(p, "b", "1", true)
	if err := r.publish(p); !errors.Is(err, store.ErrLostTail) || r.count() != 0 {
		t.Errorf("got %v; the stream holds %d messages", err, r.count())
	}
}

// An event that is refused for its size is made again under the limit of now, and stops no other.
func TestPublisherTooLarge(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	fat := func(version string) app.State {
		return app.State{Service: serviceOf("fat", version, func(svc *kservice.Service) { svc.Status.Conditions[0].Message = strings.Repeat("x", 3000) })}
	}
	r.pub.queue.Add(appID("fat"), app.NewUpsert(fat("1"), true))
	observeAll(r.pub, 20, 1, 1)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	cfg := r.stream.CachedInfo().Config
	cfg.MaxMsgSize = 5000
	if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	p := r.after(r.pub)
	p.queue.Add(appID("fat"), app.NewUpsert(fat("2"), false))
	for i := range 20 {
		observe(p, fmt.Sprint("a", i), "2", false)
	}
	if err := r.publish(p); err != nil {
		t.Fatal(err)
	}
	if got := publishedOf(p, "fat"); got.ResourceVersion != "2" || !got.Lacks(subjects.TruncatedOldApp) {
		t.Errorf("published %+v, want version 2 without old_app", got)
	}
	if got := r.count(); got != 42 {
		t.Errorf("the stream holds %d messages, want 42", got)
	}
	// A delete is published whatever the limit.
	cfg.MaxMsgSize = 1500
	if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	last := r.after(p)
	last.queue.Add(appID("fat"), app.Removal(fat("2"), app.Observation{}))
	if err := r.publish(last); err != nil {
		t.Fatal(err)
	}
	if got := publishedOf(last, "fat"); got.Kind != subjects.Deleted {
		t.Errorf("the last event is %+v, want the delete", got)
	}
}

// A session that ends with events under way knows which of them were stored.
func TestPublisherEndsWithEventsUnderWay(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observeAll(r.pub, 200, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	encoded := make(chan *flight, 200)
	for range 200 {
		f, _ := r.pub.queue.next()
		if !r.pub.prepare(f) {
			t.Fatal("nothing is prepared")
		}
		encoded <- f
	}
	for range 200 {
		if err := r.pub.launch(ctx, <-encoded); err != nil {
			t.Fatal(err)
		}
	}
	suite.Eventually(t, suite.Patience, "all are stored", func() error {
		if n := r.count(); n != 200 {
			return fmt.Errorf("%d of 200 are", n)
		}
		return nil
	})
	cancel()
	if err := r.pub.send(ctx, encoded); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if got := publishedOf(r.pub, fmt.Sprint("a", i)); got.Previous() == 0 {
			t.Fatalf("app a%d is not known to be published: %+v", i, got)
		}
	}
	r.checkStory(200, 1)
}

// A connection that is cut again and again, with everything under way.
func TestPublisherReconnects(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observeAll(r.pub, 200, 1, 8)
	ctx, cancel := context.WithCancel(t.Context())
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range 5 {
			select {
			case <-tick.C:
				_ = r.nc.ForceReconnect()
			case <-ctx.Done():
				return
			}
		}
	}()
	err := r.publish(r.pub)
	cancel()
	<-cut
	if err != nil {
		t.Fatal(err)
	}
	r.checkStory(200, 8)
}

// An acknowledged event that is gone when it is read back is neither altered nor verified.
func TestPublisherRemovedBeforeRead(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	p := r.pub
	verified := 0
	p.cfg.Verified = func(subjects.AppID) { verified++ }
	observe(p, "a", "1", true)
	if err := r.publish(p); err != nil || verified != 1 {
		t.Fatalf("verified %d times, %v", verified, err)
	}
	ev, err := testEncoder().Encode(appID("a"), app.NewUpsert(app.State{Service: serviceOf("a", "1")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.verified = false
	for at, want := range map[uint64]bool{1: true, 2: false} {
		if err := p.verify(t.Context(), &flight{id: appID("a"), ev: ev, stored: at}); err != nil || p.verified != want {
			t.Errorf("sequence %d: verified %t, %v", at, p.verified, err)
		}
		p.verified = false
	}
}
