package bridge

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// unobserve queues the end of an app.
func unobserve(p *publisher, name, version string) {
	p.queue.add(appID(name), removalOf(state{service: serviceOf(name, version)}, observation{deletedVersion: version + "0"}))
}

// forget evicts every deleted app whose delete is in the stream.
func (q *queue) forget(written uint64) {
	q.mu.Lock()
	none := make([]subjects.AppID, recentlyDeleted)
	q.gone = append(q.gone, none...) // which no queue knows
	q.mu.Unlock()
	q.evict(written)
}

// next publisher's work: everything that is queued by now.
func (r *rig) publishAll(p *publisher) *publisher {
	r.t.Helper()
	if err := r.publish(p); err != nil {
		r.t.Fatal(err)
	}
	next := r.next()
	next.queue, next.chain, next.settled, next.known = newQueue(10, 1<<30, next.metrics), p.settled, p.settled, p.known
	next.queue.reached, next.queue.complete = p.queue.reached, p.queue.complete
	next.queue.apps, next.queue.gone = p.queue.apps, p.queue.gone
	return next
}

func (r *rig) header(sequence uint64, name string) string {
	r.t.Helper()
	m, err := messageAt(r.t.Context(), r.nc, subjects.DefaultStream, sequence)
	if err != nil {
		r.t.Fatal(err)
	}
	return m.header.Get(name)
}

// A deleted app that was evicted goes on where it ended: same fence, same previous sequence, so another
// id. The label was taken off and put back: the object is the same.
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

// What must stay stays: apps that exist, that have something waiting or under way, whose delete the
// bucket does not reflect, and the newest ones.
func TestEvict(t *testing.T) {
	gone := func(sequence uint64) *record { return &record{kind: subjects.Deleted, sequence: sequence, uid: "u"} }
	for _, test := range []struct {
		name  string
		play  func(*queue)
		stays bool
	}{
		{"deleted, and reflected", func(q *queue) { q.load(testID, gone(5)) }, false},
		{"nothing but a foreign message", func(q *queue) { q.behind(testID, 5) }, false},
		{"without an event", func(q *queue) { q.load(testID, nil) }, false},
		{"not reflected yet", func(q *queue) { q.load(testID, gone(6)) }, true},
		{"it exists", func(q *queue) { q.load(testID, publishedAt("u", 3)) }, true},
		{"created again", func(q *queue) {
			q.load(testID, gone(5))
			script(q, testID, "c")
		}, true},
		{"created again, under way", func(q *queue) {
			q.load(testID, gone(5))
			script(q, testID, "c")
			q.next()
		}, true},
		{"created again, under way when everything was dropped", func(q *queue) {
			q.load(testID, gone(5))
			script(q, testID, "c")
			q.next()
			q.mu.Lock()
			q.drop()
			q.mu.Unlock()
		}, true},
		{"created and deleted again", func(q *queue) {
			q.load(testID, gone(5))
			script(q, testID, "cd")
			q.next()
			q.done(testID, publishedAt("u1", 8))
			q.next()
			q.done(testID, gone(9))
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := newQueue(10, 1<<30, testMetrics())
			defer q.close()
			test.play(q)
			q.forget(5)
			if a := q.apps[testID]; (a != nil) != test.stays {
				t.Errorf("the queue knows %+v", a)
			}
			if fence, settled := q.settled(testID); !test.stays && (fence != 0 || !settled) {
				t.Errorf("an evicted app has fence %d, settled %t: another writer's event would pass", fence, settled)
			}
			// It takes what comes, and reads before it publishes.
			if length, _ := q.oldest(); !test.stays && length != 0 {
				t.Errorf("%d changes wait", length)
			}
			script(q, testID, "c")
			if a := q.apps[testID]; a != nil && a.unread != !test.stays {
				t.Errorf("unread is %t", a.unread)
			}
			if q.full {
				q.done(testID, nil) // what the publisher still had
			}
		})
	}
	q := newQueue(10, 1<<30, testMetrics())
	for i := range recentlyDeleted + 10 {
		q.load(appID(strconv.Itoa(i)), gone(uint64(i+1)))
	}
	q.evict(1 << 40)
	if len(q.apps) != recentlyDeleted || q.apps[appID("9")] != nil || q.apps[appID("10")] == nil {
		t.Errorf("%d apps are left, want the newest %d", len(q.apps), recentlyDeleted)
	}
}

// Another bridge published an app that this one had evicted: nothing is appended, and the session ends.
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

// The bucket lost the key of an app of which the queue knows nothing. Its very state is not published a
// second time; a later one of the same object is an update, and one of another object is refused.
func TestUnreadAppThatExists(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, version, want string }{
		{"the same state", "1", "a/created/1"},
		{"a later state", "2", "a/created/1 a/updated/2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			observe(r.pub, "a", "1", true)
			if err := r.publish(r.pub); err != nil {
				t.Fatal(err)
			}
			p := r.next()
			var missing []subjects.AppID
			p.keyMissing = func(id subjects.AppID) { missing = append(missing, id) }
			observe(p, "a", test.version, true)
			if err := r.publish(p); err != nil {
				t.Fatal(err)
			}
			got := ""
			for i, line := range r.story() {
				if i > 0 {
					got += " "
				}
				got += line
			}
			if got != test.want || (len(missing) == 1) != (test.version == "1") {
				t.Errorf("got %s, missing %v", got, missing)
			}
			if known := known(p, "a"); !known.exists() || known.resourceVersion != test.version {
				t.Errorf("the record is %+v", known)
			}
		})
	}
}

// The changes of an app that the ended session had evicted follow its delete, and no event that
// this bridge does not know.
func TestRemainingOfEvicted(t *testing.T) {
	gone := func(sequence uint64) *record {
		return &record{kind: subjects.Deleted, uid: "u1", resourceVersion: "0", sequence: sequence}
	}
	for _, test := range []struct {
		name   string
		stored *record
		want   int // changes of the three that remain
	}{
		{"its delete", gone(7), 3},
		{"nothing is left of it", nil, 3},
		{"a delete that this bridge does not know", gone(11), 0},
		{"the create had landed", &record{kind: subjects.Created, uid: "u1", resourceVersion: "1", sequence: 12}, 2},
		{"another bridge published further", &record{kind: subjects.Updated, uid: "u1", resourceVersion: "9", sequence: 12}, 0},
		{"it existed all the time", &record{kind: subjects.Updated, uid: "u1", resourceVersion: "9", sequence: 4}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := newQueue(100, 1<<20, testMetrics())
			q.reached = 10
			script(q, testID, "cuu")
			q.close()
			last := q.apps[testID].changes[2].state
			if changes, ok := q.remaining(testID, test.stored, &last, nil); len(changes) != test.want && ok || ok != (test.want > 0) {
				t.Errorf("%d changes remain, %t, want %d", len(changes), ok, test.want)
			}
		})
	}
}

// A session that ended knew deleted apps; the next one's records lack them. They are not taken for
// apps whose event was removed, and what waits for them is carried.
func TestCarriedChangesOfDeletedApps(t *testing.T) {
	m := testMetrics()
	s := newSource(zap.NewNop(), m.reject)
	before := newQueue(100, 1<<20, m)
	before.reached = 7
	before.load(testID, &record{kind: subjects.Deleted, uid: "u0", resourceVersion: "1", sequence: 7})
	before.load(appID("quiet"), &record{kind: subjects.Deleted, uid: "u9", resourceVersion: "1", sequence: 6})
	s.connect(func(view) sink { return before.add }, nil)
	s.serviceHandler().OnAdd(testService("u1", "20", "True"), false)
	before.close()
	q := newQueue(100, 1<<20, m)
	defer q.close()
	records := map[subjects.AppID]*record{}
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
	s := newSource(zap.NewNop(), m.reject)
	services := s.serviceHandler()
	pub := r.publisher(testEncoder(), m)
	s.connect(func(view) sink { return pub.queue.add }, nil)
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
		s.connect(func(view) sink { return pub.queue.add }, nil)
	}
	if len(pub.queue.apps) > alive+recentlyDeleted || keysOf(p) != alive || len(p.refused)+len(p.flying) > 0 || len(pub.queue.gone) > recentlyDeleted {
		t.Errorf("the queue knows %d apps, the projector %d keys", len(pub.queue.apps), keysOf(p))
	}
	if got := r.keysIn(); len(got) != alive+rounds*apps || !slices.Contains(got, "a0-0") {
		t.Errorf("the bucket holds %d keys", len(got))
	}
}
