package bridge

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
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
			observe(r.pub, "a", "1", true)
			unobserve(r.pub, "a", "1")
			p := r.publishAll(r.pub)
			r.project()
			p.queue.forget(2)
			if len(p.queue.apps) != 0 || p.queue.complete {
				t.Fatalf("the queue knows %v", p.queue.apps)
			}
			test.between(t, r)
			observe(p, "a", "5", true)
			r.publishAll(p)
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
			observe(r.pub, "a", "1", true)
			unobserve(r.pub, "a", "1")
			p := r.publishAll(r.pub)
			r.project()
			p.queue.forget(2)
			other := r.next()
			observe(other, "a", version, true)
			if err := r.publish(other); err != nil {
				t.Fatal(err)
			}
			observe(p, "a", "5", true)
			if err := r.publish(p); !errors.As(err, new(*otherWriterError)) || r.count() != 3 {
				t.Errorf("got %v; the stream holds %d messages", err, r.count())
			}
		})
	}
}

// A session that ended knew deleted apps; the next one's records lack them. They are not taken for
// apps whose event was removed, and what waits for them is carried.
func TestCarriedChangesOfDeletedApps(t *testing.T) {
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), m.reject)
	before := testQueue(100, 1<<20)
	before.reached = 7
	before.load(testID, &app.Record{Kind: subjects.Deleted, UID: "u0", ResourceVersion: "1", Sequence: 7})
	before.load(appID("quiet"), &app.Record{Kind: subjects.Deleted, UID: "u9", ResourceVersion: "1", Sequence: 6})
	s.Connect(func(watch.View) watch.Sink { return before.add }, nil)
	s.Services().OnAdd(testService("u1", "20", "True"), false)
	before.close()
	q := testQueue(100, 1<<20)
	defer q.close()
	records := map[subjects.AppID]*app.Record{}
	_, carried, _ := connect(s, q, before, records, nil, nil, kservice.Config{}, func(string) bool { return true }, func() func() { return func() {} }, func(error) {})
	if carried != 1 || q.apps[appID("quiet")] != nil || !q.isUnread(testID) {
		t.Errorf("carried %d; the queue knows %v", carried, q.apps)
	}
}

// What queue and projector hold does not grow with the apps that came and went.
func TestMemoryOfDeletedApps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const rounds, apps, alive = 4, 2500, 100
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), m.reject)
	services := s.Services()
	pub := r.pub
	s.Connect(func(watch.View) watch.Sink { return pub.queue.add }, nil)
	p := r.follow()
	taken(p)
	version := 0
	show := func(name string) *kservice.Service {
		version++
		svc := serviceOf(name, strconv.Itoa(version))
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
		if err := r.publish(pub); err != nil {
			t.Fatal(err)
		}
		r.reflects(p, pub.settled)
		p.takeTouched()
		pub.queue.evict(p.written.Load())
		pub = r.publishAll(pub)
		s.Connect(func(watch.View) watch.Sink { return pub.queue.add }, nil)
	}
	if len(pub.queue.apps) > alive+recentlyDeleted || keysOf(p) != alive || len(p.refused)+len(p.flying) > 0 || len(pub.queue.gone) > recentlyDeleted {
		t.Errorf("the queue knows %d apps, the projector %d keys", len(pub.queue.apps), keysOf(p))
	}
	if got := r.keysIn(); len(got) != alive+rounds*apps || !slices.Contains(got, "a0-0") {
		t.Errorf("the bucket holds %d keys", len(got))
	}
}

// What is carried over is owed, change by change, and does not merge on the way: in
// the new queue the bytes of other apps may be there first.
func TestCarriedChangesAreOwed(t *testing.T) {
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), m.reject)
	before := testQueue(100, 1<<20)
	s.Connect(func(watch.View) watch.Sink { return before.add }, nil)
	h := s.Services()
	for version := 1; version <= 4; version++ {
		h.OnAdd(testService("u1", fmt.Sprint(version), "True"), false)
	}
	for i := range 20 {
		svc := testService(fmt.Sprint("x", i), fmt.Sprint(100+i), "True")
		svc.Name = fmt.Sprint("app", i)
		svc.Annotations[kservice.AnnotationAppID] = fmt.Sprint("p/d/a", i)
		h.OnAdd(svc, false)
	}
	before.close()
	q := testQueue(100, before.bytes/3) // as many bytes as make updates merge
	defer q.close()
	owed := 0
	_, carried, _ := connect(s, q, before, nil, nil, nil, kservice.Config{}, func(string) bool { return true },
		func() func() { owed++; return func() { owed-- } }, func(error) {})
	if carried != 24 || owed != 24 || q.length != 24 {
		t.Errorf("carried %d, owed %d, queued %d, want 24 of each", carried, owed, q.length)
	}
	for q.length > 0 {
		id, c, _, _ := q.next()
		q.done(id, nil)
		c.Resynced()
	}
	if owed != 0 {
		t.Errorf("everything is published, and %d changes are still owed", owed)
	}
}
