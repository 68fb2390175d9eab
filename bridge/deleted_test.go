package bridge

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// A deleted app that was evicted goes on where it ended: same fence, same previous sequence, so
// another id. The label was taken off and put back: the object is the same.
func TestEvictedAppGoesOn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		between  func(*testing.T, *rig)
		sequence uint64
		previous string
		fence    string
	}{
		{"nothing happened", func(*testing.T, *rig) {}, 3, "2", "2"},
		{"a foreign message on its subject", func(t *testing.T, r *rig) {
			if _, err := r.js.Publish(t.Context(), "flyte.apps.events.p.d.a.updated", []byte("x")); err != nil {
				t.Fatal(err)
			}
		}, 4, "2", "3"},
		{"its delete was removed, the bucket has the marker", func(t *testing.T, r *rig) {
			if err := r.stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, 3, "2", "0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w := r.next()
			w.observe("a", "1", true)
			w.unobserve("a", "1")
			if err := w.publish(); err != nil {
				t.Fatal(err)
			}
			r.project()
			evictAll(w.queue, 2)
			if slices.Contains(w.queue.Known(), otherApp("a")) {
				t.Fatal("the queue knows the app")
			}
			test.between(t, r)
			w.observe("a", "5", true)
			if err := w.publish(); err != nil {
				t.Fatal(err)
			}
			if got := r.header(test.sequence, subjects.HeaderPreviousSequence); got != test.previous {
				t.Errorf("the event follows %q, want %s", got, test.previous)
			}
			if got, want := r.header(test.sequence, subjects.HeaderMsgID), "uid-a/5/"+test.previous; got != want {
				t.Errorf("its id is %s, want %s", got, want)
			}
			if got := r.header(test.sequence, subjects.HeaderExpectedLastSubjectSequence); got != test.fence {
				t.Errorf("its fence is %s, want %s", got, test.fence)
			}
			if got := r.header(test.sequence, subjects.CEType); got != subjects.Created.Type() {
				t.Errorf("it is a %s", got)
			}
		})
	}
}

// Another bridge published an app that this one had evicted: nothing is appended, and the session
// ends.
func TestEvictedAppOfAnotherWriter(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"5", "6"} { // the very state that waits here, and another
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w := r.next()
			w.observe("a", "1", true)
			w.unobserve("a", "1")
			if err := w.publish(); err != nil {
				t.Fatal(err)
			}
			r.project()
			evictAll(w.queue, 2)
			other := r.next()
			other.observe("a", version, true)
			if err := other.publish(); err != nil {
				t.Fatal(err)
			}
			w.observe("a", "5", true)
			if err := w.publish(); !errors.As(err, new(*publisher.OtherWriterError)) || r.count() != 3 {
				t.Errorf("got %v; the stream holds %d messages", err, r.count())
			}
		})
	}
}

// A session that ended knew deleted apps; the next one's records lack them. They are not taken for
// apps whose event was removed, and what waits for them is carried.
func TestCarriedChangesOfDeletedApps(t *testing.T) {
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject)
	before := publisher.NewQueue(publisher.QueueConfig{PerApp: 100, MaxBytes: 1 << 20, Reached: 7, Metrics: m.publisher})
	before.Load(testID, &app.Record{Kind: subjects.Deleted, UID: "u0", ResourceVersion: "1", Sequence: 7})
	before.Load(otherApp("quiet"), &app.Record{Kind: subjects.Deleted, UID: "u9", ResourceVersion: "1", Sequence: 6})
	s.Connect(func(watch.View) watch.Sink { return before.Add }, nil)
	s.Services().OnAdd(testService("u1", "20", "True"), false)
	q := newTestQueue(1 << 20)
	records := map[subjects.AppID]*app.Record{}
	_, carried, _ := connect(s, q, before, records, nil, nil, func(string) bool { return true }, func() func() { return func() {} }, func(error) {})
	if record, pending := q.Published(testID); carried != 1 || len(q.Known()) > 0 || record != nil || !pending {
		t.Errorf("carried %d; the queue knows %v", carried, q.Known())
	}
}

// What queue and projector hold does not grow with the apps that came and went.
func TestMemoryOfDeletedApps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const rounds, apps, alive = 4, 1000, 100
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject)
	services := s.Services()
	pub := r.next()
	s.Connect(func(watch.View) watch.Sink { return pub.queue.Add }, nil)
	p := r.follow()
	taken(p)
	version := 0
	var ids []subjects.AppID
	show := func(name string) *kservice.Service {
		version++
		ids = append(ids, otherApp(name))
		svc := knativeService(name, strconv.Itoa(version))
		svc.Name = name
		services.OnAdd(svc, false)
		return svc
	}
	for i := range alive {
		show(fmt.Sprint("alive", i))
	}
	for round := range rounds {
		for i := range apps {
			svc := show(fmt.Sprint("a", round, "-", i))
			version++
			last := *svc
			last.ResourceVersion = strconv.Itoa(version)
			services.OnDelete(&last)
		}
		if err := pub.publish(); err != nil {
			t.Fatal(err)
		}
		r.reflects(p, pub.Highest())
		p.TakeTouched()
		pub.queue.Evict(p.Position())
	}
	states, _ := p.KeyStates(ids)
	keys := 0
	for _, state := range states {
		if state.Known {
			keys++
		}
	}
	if got := len(pub.queue.Known()); got > alive+1000 || keys != alive {
		t.Errorf("the queue knows %d apps, the projector %d keys", got, keys)
	}
	if got := r.keysIn(); len(got) != alive+rounds*apps || !slices.Contains(got, "a0-0") {
		t.Errorf("the bucket holds %d keys", len(got))
	}
}

// What is carried over is owed, change by change, and does not merge on the way: in
// the new queue the bytes of other apps may be there first.
func TestCarriedChangesAreOwed(t *testing.T) {
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject)
	before := newTestQueue(1 << 20)
	size := int64(0)
	s.Connect(func(watch.View) watch.Sink {
		return func(id subjects.AppID, c *app.Change) {
			size += c.Size
			before.Add(id, c)
		}
	}, nil)
	h := s.Services()
	for version := 1; version <= 4; version++ {
		h.OnAdd(testService("u1", fmt.Sprint(version), "True"), false)
	}
	for i := range 20 {
		svc := apptest.Service(fmt.Sprint("x", i), fmt.Sprint(100+i), "True")
		svc.Name = fmt.Sprint("app", i)
		svc.Annotations[kservice.AnnotationAppID] = fmt.Sprint("p/d/a", i)
		h.OnAdd(svc, false)
	}
	q := newTestQueue(size / 3) // as many bytes as make updates merge
	owed := 0
	_, carried, _ := connect(s, q, before, nil, nil, nil, func(string) bool { return true },
		func() func() { owed++; return func() { owed-- } }, func(error) {})
	if n, _ := q.Oldest(); carried != 24 || owed != 24 || n != 24 {
		t.Errorf("carried %d, owed %d, queued %d, want 24 of each", carried, owed, n)
	}
	for _, pending := range q.Pending(nil) {
		for _, c := range pending.Changes {
			c.Resynced()
		}
	}
	if owed != 0 {
		t.Errorf("everything is published, and %d changes are still owed", owed)
	}
}
