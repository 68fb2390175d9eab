package watch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app"
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
	rev := watchedRevision(version, replicas)
	rev.Name = name
	return rev
}

func notReady(rev *kservice.Revision) *kservice.Revision {
	rev.Status.NotReady = true
	return rev
}

// naming is a version of watchedService that names a Revision.
func naming(v, revision string) *kservice.Service {
	svc := watchedService("u1", v, "True")
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
			r.OnUpdate(nil, watchedRevision("11", 0))
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
			s.SetAfter(clock.after)
			services, revisions := s.Services(), s.Revisions()
			revisions.OnAdd(watchedRevision("9", 3), true)
			services.OnAdd(naming("10", "rev-1"), true)
			var got []string
			s.Connect(func(View) Sink { return func(_ subjects.AppID, c *app.Change) { got = append(got, countOf(c)) } }, nil)
			test.play(services, revisions, func() { clock.pass() })
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			s.Close()
			if n := clock.pass(); n != 0 {
				t.Errorf("%d timers run on", n)
			}
		})
	}
}

// countOf is a change with the count of its state and the Revision that gives it.
func countOf(c *app.Change) string {
	switch {
	case c.Remove && c.FinalStateUnknown:
		return "lost"
	case c.Remove:
		return "gone"
	}
	text := fmt.Sprintf("%s x%d", c.State.Service.ResourceVersion, app.Replicas(c.State))
	if rev := c.State.Revision; rev != nil {
		text += fmt.Sprintf(" of %s@%s", rev.Name, rev.ResourceVersion)
	}
	if !c.Mergeable {
		text = "new " + text
	}
	return text
}

// What requests are answered with is what is published.
func TestStandInIsShown(t *testing.T) {
	s, _ := observedSource()
	clock := &timers{}
	s.SetAfter(clock.after)
	services, revisions := s.Services(), s.Revisions()
	revisions.OnAdd(watchedRevision("9", 3), true)
	services.OnAdd(naming("10", "rev-1"), true)
	shows := func(what, want string) {
		t.Helper()
		got := "none"
		s.Read(func(v View) {
			if rev := v.NewestRevision(watchedID, v.States()[watchedID]); rev != nil {
				got = fmt.Sprintf("%s@%s", rev.Name, rev.ResourceVersion)
			}
		})
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

// The timer of a source is a real one, and is stopped with it.
func TestStandInStops(t *testing.T) {
	s, _ := observedSource()
	services, revisions := s.Services(), s.Revisions()
	revisions.OnAdd(watchedRevision("9", 3), true)
	services.OnAdd(naming("10", "rev-1"), true)
	services.OnUpdate(nil, naming("21", "rev-2"))
	s.mu.Lock()
	a := s.standIns.apps[watchedID]
	s.mu.Unlock()
	s.Close()
	var err error
	if a == nil || a.stop() {
		err = errors.New("the timer runs after close")
	}
	services.OnUpdate(nil, naming("22", "rev-3"))
	if len(s.standIns.apps) != 0 {
		err = errors.Join(err, errors.New("a timer was started after close"))
	}
	if err != nil {
		t.Error(err)
	}
}
