package bridge

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// timers are timers that run out when a test says so.
type timers struct{ waiting []*timer }

type timer struct {
	after   time.Duration
	do      func()
	stopped bool
}

func (t *timers) after(d time.Duration, do func()) (stop func() bool) {
	next := &timer{after: d, do: do}
	t.waiting = append(t.waiting, next)
	return func() bool {
		was := next.stopped
		next.stopped = true
		return !was
	}
}

// pass lets every timer run out that was not stopped, and returns how many there were.
func (t *timers) pass() (fired int) {
	waiting := t.waiting
	t.waiting = nil
	for _, next := range waiting {
		if !next.stopped {
			fired++
			next.do()
		}
	}
	return fired
}

func revisionNamed(name, version string, replicas int32) *kservice.Revision {
	rev := testRevision(version, replicas)
	rev.Name = name
	return rev
}

func notReady(rev *kservice.Revision) *kservice.Revision {
	rev.Status.NotReady = true
	return rev
}

// naming is a version of testService that names a Revision.
func naming(v, revision string) *kservice.Service {
	svc := testService("u1", v, "True")
	svc.Status.LatestReadyRevisionName = revision
	return svc
}

func TestStandIn(t *testing.T) {
	unknown := revisionNamed("rev-2", "15", 0)
	unknown.Status.ActualReplicas = nil
	stopped := naming("22", "rev-2")
	stopped.Labels[kservice.LabelStopped] = "true"
	recreated := naming("30", "rev-2")
	recreated.UID = "u9"
	type handler = toolscache.ResourceEventHandler
	rollout := func(s, _ handler) { s.OnUpdate(nil, naming("21", "rev-2")) }
	for _, test := range []struct {
		name string
		play func(s, r handler, pass func())
		want []string // after rev-1@9 with 3 replicas, then version 10 of the Service
	}{
		{"the Revision is shown first", func(s, r handler, _ func()) {
			r.OnAdd(revisionNamed("rev-2", "20", 3), false)
			rollout(s, r)
		}, []string{"21 x3 of rev-2@20"}},
		{"the Service is shown first", func(s, r handler, pass func()) {
			rollout(s, r)
			r.OnAdd(revisionNamed("rev-2", "20", 3), false)
			pass()
		}, []string{"21 x3 of rev-1@9"}},
		{"the Service is shown first, and another count follows", func(s, r handler, pass func()) {
			rollout(s, r)
			r.OnAdd(revisionNamed("rev-2", "20", 2), false)
			pass()
		}, []string{"21 x3 of rev-1@9", "21 x2 of rev-2@20"}},
		{"known from before it was ready", func(s, r handler, pass func()) {
			r.OnAdd(notReady(revisionNamed("rev-2", "15", 0)), false)
			rollout(s, r)
			r.OnUpdate(nil, notReady(revisionNamed("rev-2", "16", 1)))
			r.OnUpdate(nil, revisionNamed("rev-2", "20", 3))
			pass()
		}, []string{"21 x3 of rev-1@9"}},
		{"known without a count", func(s, r handler, pass func()) {
			r.OnAdd(unknown, false)
			rollout(s, r)
			r.OnUpdate(nil, revisionNamed("rev-2", "20", 4))
			pass()
		}, []string{"21 x3 of rev-1@9", "21 x4 of rev-2@20"}},
		{"the one before scales down meanwhile", func(s, r handler, _ func()) {
			rollout(s, r)
			r.OnUpdate(nil, revisionNamed("rev-1", "22", 0))
			r.OnDelete(revisionNamed("rev-1", "23", 0))
			s.OnUpdate(nil, naming("24", "rev-2"))
		}, []string{"21 x3 of rev-1@9", "24 x3 of rev-1@9"}},
		{"the time is over", func(s, r handler, pass func()) {
			rollout(s, r)
			pass()
			s.OnUpdate(nil, naming("25", "rev-2"))
			pass()
			r.OnAdd(revisionNamed("rev-2", "26", 1), false)
		}, []string{"21 x3 of rev-1@9", "21 x0", "25 x0", "25 x1 of rev-2@26"}},
		{"the time is over, and it is not ready", func(s, r handler, pass func()) {
			r.OnAdd(notReady(revisionNamed("rev-2", "15", 1)), false)
			rollout(s, r)
			pass()
		}, []string{"21 x3 of rev-1@9", "21 x1 of rev-2@15"}},
		{"another rollout does not make the time longer", func(s, r handler, pass func()) {
			rollout(s, r)
			s.OnUpdate(nil, naming("22", "rev-3"))
			pass()
			s.OnUpdate(nil, naming("23", "rev-4"))
		}, []string{"21 x3 of rev-1@9", "22 x3 of rev-1@9", "22 x0", "23 x0"}},
		{"rolled back", func(s, r handler, pass func()) {
			rollout(s, r)
			s.OnUpdate(nil, naming("22", "rev-1"))
			pass()
		}, []string{"21 x3 of rev-1@9", "22 x3 of rev-1@9"}},
		{"stopped", func(s, r handler, pass func()) {
			rollout(s, r)
			s.OnUpdate(nil, stopped)
			pass()
			s.OnUpdate(nil, naming("23", "rev-2"))
		}, []string{"21 x3 of rev-1@9", "22 x0", "23 x0"}},
		{"no Revision any more", func(s, r handler, _ func()) {
			rollout(s, r)
			s.OnUpdate(nil, naming("22", ""))
		}, []string{"21 x3 of rev-1@9", "22 x0"}},
		{"to zero and back", func(s, r handler, _ func()) {
			r.OnAdd(revisionNamed("rev-2", "20", 3), false)
			rollout(s, r)
			r.OnUpdate(nil, revisionNamed("rev-2", "22", 0))
			r.OnUpdate(nil, revisionNamed("rev-2", "23", 1))
		}, []string{"21 x3 of rev-2@20", "21 x0 of rev-2@22", "21 x1 of rev-2@23"}},
		{"from zero", func(s, r handler, pass func()) {
			r.OnUpdate(nil, testRevision("11", 0))
			rollout(s, r)
			r.OnAdd(revisionNamed("rev-2", "20", 2), false)
			pass()
		}, []string{"10 x0 of rev-1@11", "21 x0", "21 x2 of rev-2@20"}},
		{"the Revision of a rollout that is over goes", func(s, r handler, pass func()) {
			rollout(s, r)
			r.OnAdd(revisionNamed("rev-2", "20", 3), false)
			r.OnDelete(revisionNamed("rev-2", "22", 3))
			pass()
		}, []string{"21 x3 of rev-1@9", "21 x0"}},
		{"recreated", func(s, r handler, pass func()) {
			rollout(s, r)
			s.OnUpdate(nil, recreated)
			pass()
		}, []string{"21 x3 of rev-1@9", "lost", "new 30 x0"}},
		{"deleted", func(s, r handler, pass func()) {
			rollout(s, r)
			s.OnDelete(naming("22", "rev-2"))
			pass()
		}, []string{"21 x3 of rev-1@9", "gone"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := observedSource()
			clock := &timers{}
			s.after = clock.after
			services, revisions := s.serviceHandler(), s.revisionHandler()
			revisions.OnAdd(testRevision("9", 3), true)
			services.OnAdd(naming("10", "rev-1"), true)
			var got []string
			s.sink = func(_ subjects.AppID, c *change) { got = append(got, countOf(t, c)) }
			test.play(services, revisions, func() { clock.pass() })
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			s.close()
			if n := clock.pass(); n != 0 {
				t.Errorf("%d timers run on", n)
			}
		})
	}
}

// countOf is a change with the count that its event shows and where that is from.
func countOf(t *testing.T, c *change) string {
	t.Helper()
	switch {
	case c.remove && c.finalStateUnknown:
		return "lost"
	case c.remove:
		return "gone"
	}
	ev, err := testEncoder().encode(testID, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%s x%d", ev.record.resourceVersion, ev.record.app.GetStatus().GetCurrentReplicas())
	if ev.record.revision != "" {
		text += fmt.Sprintf(" of %s@%s", ev.msg.Header.Get(subjects.HeaderRevision), ev.msg.Header.Get(subjects.HeaderRevisionResourceVersion))
	}
	if !c.mergeable {
		text = "new " + text
	}
	return text
}

// What requests are answered with is what is published.
func TestStandInIsShown(t *testing.T) {
	s, _ := observedSource()
	clock := &timers{}
	s.after = clock.after
	b := &Bridge{source: s}
	services, revisions := s.serviceHandler(), s.revisionHandler()
	revisions.OnAdd(testRevision("9", 3), true)
	services.OnAdd(naming("10", "rev-1"), true)
	shows := func(what, want string) {
		t.Helper()
		entry, _ := b.App(testID)
		got := "none"
		if entry.Revision != nil {
			got = fmt.Sprintf("%s@%s", entry.Revision.Name, entry.Revision.ResourceVersion)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	services.OnUpdate(nil, naming("21", "rev-2"))
	shows("before the Revision is known", "rev-1@9")
	revisions.OnAdd(revisionNamed("rev-2", "20", 3), false)
	shows("once it is known", "rev-2@20")
	services.OnUpdate(nil, naming("22", "rev-3"))
	shows("at the next rollout", "rev-2@20")
	clock.pass()
	shows("once the time is over", "none")
}

// A bridge that starts in the middle of a rollout goes by the last count that was published.
func TestStandInAtStart(t *testing.T) {
	one := state{service: naming("10", "rev-1"), revision: testRevision("9", 3)}
	before := state{service: naming("21", "rev-2"), revision: testRevision("9", 3)}
	zero := state{service: naming("21", "rev-2")}
	for _, test := range []struct {
		name      string
		published state
		revision  *kservice.Revision // known at the start
		over      bool               // the time was over before
		want      []string
		after     []string // the time is over after that
		known     []string // or rev-2 is known with 3 replicas
	}{
		{"published before the rollout", one, nil, false, []string{"21 x3 of rev-1@9"}, []string{"21 x0"}, nil},
		{"published in it", before, nil, false, nil, []string{"21 x0"}, nil},
		{"published in it, not ready", before, notReady(revisionNamed("rev-2", "15", 0)), false, nil, []string{"21 x0 of rev-2@15"}, nil},
		{"published in it, known", before, revisionNamed("rev-2", "20", 3), false, nil, nil, nil},
		{"published in it, known with another count", before, revisionNamed("rev-2", "20", 2), false, []string{"21 x2 of rev-2@20"}, nil, []string{"21 x3 of rev-2@30"}},
		{"published after its time", zero, nil, false, nil, nil, []string{"21 x3 of rev-2@30"}},
		{"started long before", one, nil, true, []string{"21 x0"}, nil, []string{"21 x3 of rev-2@30"}},
	} {
		for _, arrives := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, arrives %t", test.name, arrives), func(t *testing.T) {
				m := testMetrics()
				s, _ := observedSource()
				s.sink = nil
				clock := &timers{}
				s.after = clock.after
				services, revisions := s.serviceHandler(), s.revisionHandler()
				if test.revision != nil {
					revisions.OnAdd(test.revision, true)
				}
				services.OnAdd(naming("21", "rev-2"), true)
				if test.over {
					clock.pass()
				}
				q := newQueue(100, 1<<20, m)
				defer q.close()
				s.connect(q, nil, map[subjects.AppID]*record{testID: publishedAs(t, test.published)}, nil, nil, testEncoder().app,
					func(string) bool { return true }, func() func() { return func() {} }, func(error) {})
				want := test.want
				if arrives {
					want = append(slices.Clone(want), test.known...)
					revisions.OnAdd(revisionNamed("rev-2", "30", 3), false)
				} else {
					want = append(slices.Clone(want), test.after...)
				}
				clock.pass()
				var got []string
				for q.length > 0 {
					id, c, _, _ := q.next()
					got = append(got, countOf(t, c))
					q.done(id, nil)
				}
				if !slices.Equal(got, want) {
					t.Errorf("got  %q\nwant %q", got, want)
				}
			})
		}
	}
}

// A new session goes on with the changes of the one before, also at a rollout.
func TestStandInIsCarried(t *testing.T) {
	m := testMetrics()
	s, _ := observedSource()
	s.after = (&timers{}).after
	services, revisions := s.serviceHandler(), s.revisionHandler()
	revisions.OnAdd(testRevision("9", 3), true)
	services.OnAdd(naming("10", "rev-1"), true)
	before := newQueue(100, 1<<20, m)
	r := publishedAs(t, state{service: naming("10", "rev-1"), revision: testRevision("9", 3)})
	before.load(testID, r)
	s.sink = before.add
	services.OnUpdate(nil, naming("21", "rev-2"))
	services.OnUpdate(nil, naming("22", "rev-2"))
	before.close()
	q := newQueue(100, 1<<20, m)
	defer q.close()
	differences, carried, _ := s.connect(q, before, map[subjects.AppID]*record{testID: r}, nil, nil, testEncoder().app,
		func(string) bool { return true }, func() func() { return func() {} }, func(error) {})
	if differences != 0 || carried != 2 {
		t.Errorf("%d differences and %d changes carried, want 2 carried", differences, carried)
	}
}

// A difference that a bridge may rightly hold on to is borne for longer than others.
func TestStandInIsBorne(t *testing.T) {
	c := testComparison()
	published := eventOf(t, state{service: naming("21", "rev-2"), revision: testRevision("9", 3)})
	entry := entryOf(t, published)
	current := map[subjects.AppID]state{testID: {service: naming("21", "rev-2")}}
	for _, awaited := range []map[subjects.AppID]*awaited{nil, {testID: {}}} {
		c.awaits = awaited
		differences, _ := c.compare(current, map[subjects.AppID]*lastEvent{testID: published}, map[subjects.AppID]*held{testID: entry})
		if len(differences) != 1 {
			t.Fatalf("got %v, want one difference", differences)
		}
		if got, want := differences[0].bear > standInTime, awaited != nil; got != want {
			t.Errorf("borne for %s with %d apps awaited", differences[0].bear, len(awaited))
		}
	}
}

// The timer of a source is a real one, and is stopped with it.
func TestStandInStops(t *testing.T) {
	s, _ := observedSource()
	services, revisions := s.serviceHandler(), s.revisionHandler()
	revisions.OnAdd(testRevision("9", 3), true)
	services.OnAdd(naming("10", "rev-1"), true)
	services.OnUpdate(nil, naming("21", "rev-2"))
	s.mu.Lock()
	a := s.awaits[testID]
	s.mu.Unlock()
	s.close()
	var err error
	if a == nil || a.stop() {
		err = errors.New("the timer runs after close")
	}
	services.OnUpdate(nil, naming("22", "rev-3"))
	if len(s.awaits) != 0 {
		err = errors.Join(err, errors.New("a timer was started after close"))
	}
	if err != nil {
		t.Error(err)
	}
}
