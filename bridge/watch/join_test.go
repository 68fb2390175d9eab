package watch

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// joinRig is a source that two informers of a namespace feed, and what it emits.
type joinRig struct {
	*Source
	clock               *timers
	services, revisions toolscache.ResourceEventHandler
	got                 []string
}

// newJoinRig has version 10 of a Service, and rev-1@9 with 3 replicas.
func newJoinRig() *joinRig {
	s, _ := observedSource()
	r := &joinRig{Source: s, clock: &timers{}}
	s.SetAfter(r.clock.after)
	s.expect([]string{KindService, KindRevision}, []string{"flyte"})
	r.services, r.revisions = s.Services(), s.Revisions()
	s.Connect(func(View) Sink {
		return func(_ subjects.AppID, c *app.Change) {
			text := countOf(c)
			if c.Synthesized {
				text += " listed"
			}
			r.got = append(r.got, text)
		}
	}, nil)
	r.list(KindRevision, "9", func() { r.revisions.OnAdd(watchedRevision("9", 3), true) })
	r.list(KindService, "10", func() { r.services.OnAdd(naming("10", "rev-1"), true) })
	return r
}

// list is a list of a kind at a version.
func (r *joinRig) list(kind, version string, deliver func()) {
	r.Phase(kind, "flyte", PhaseListing)
	r.Listed(kind, "flyte", version)
	deliver()
	r.end(kind, r.mark(kind, "flyte", version))
}

// end delivers a mark.
func (r *joinRig) end(kind string, mark any) {
	h := r.services
	if kind == KindRevision {
		h = r.revisions
	}
	h.OnDelete(mark)
}

func (r *joinRig) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if !slices.Equal(r.got, want) {
		t.Errorf("%s: got %q, want %q", what, r.got, want)
	}
	r.got = nil
}

// Until the lists are complete each part keeps its last known value; what is observed flows.
func TestJoin(t *testing.T) {
	missing := func(rev *kservice.Revision) any { return toolscache.DeletedFinalStateUnknown{Obj: rev} }
	r := newJoinRig()
	r.expect(t, "the start", "new 10 x3 of rev-1@9 listed")

	// Both list: one change at the end.
	r.Phase(KindService, "flyte", PhaseListing)
	r.list(KindRevision, "20", func() { r.revisions.OnDelete(missing(watchedRevision("9", 3))) })
	r.expect(t, "the Revision is missing, Services are not listed yet")
	r.list(KindService, "21", func() { r.services.OnUpdate(nil, naming("21", "rev-1")) })
	r.expect(t, "both are listed", "21 x0 listed")

	// A Service that is observed does not wait, and what a list showed of it goes first.
	r.revisions.OnAdd(watchedRevision("22", 2), false)
	r.expect(t, "the Revision is back", "21 x2 of rev-1@22")
	r.Phase(KindRevision, "flyte", PhaseListing)
	r.services.OnUpdate(nil, naming("23", "rev-1"))
	r.expect(t, "Revisions are listed", "23 x2 of rev-1@22")
	r.list(KindService, "24", func() { r.services.OnUpdate(nil, naming("24", "rev-1")) })
	r.expect(t, "Services are listed again meanwhile")
	r.services.OnUpdate(nil, naming("25", "rev-1"))
	r.expect(t, "and observed", "24 x2 of rev-1@22 listed", "25 x2 of rev-1@22")
	r.list(KindRevision, "26", func() { r.revisions.OnUpdate(nil, watchedRevision("26", 1)) })
	r.expect(t, "Revisions are listed too", "25 x1 of rev-1@26 listed")

	// An observed deletion waits for the Services that are being listed.
	r.Phase(KindService, "flyte", PhaseListing)
	r.revisions.OnUpdate(nil, watchedRevision("27", 4))
	r.expect(t, "another count", "25 x4 of rev-1@27")
	r.revisions.OnDelete(watchedRevision("28", 4))
	r.expect(t, "no Revision")
	r.list(KindService, "29", func() { r.services.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: naming("25", "rev-1")}) })
	r.expect(t, "no Service", "lost listed")

	// Another object, which is deleted before the lists are complete.
	r.services.OnAdd(naming("30", ""), false)
	r.expect(t, "created", "new 30 x0")
	r.Phase(KindRevision, "flyte", PhaseListing)
	other := naming("31", "")
	other.UID = "u9"
	r.list(KindService, "32", func() { r.services.OnUpdate(nil, other) })
	r.expect(t, "recreated, as the list shows")
	deleted := other.DeepCopy()
	deleted.ResourceVersion = "33"
	r.services.OnDelete(deleted)
	r.expect(t, "deleted, as the watch shows", "lost listed", "new 31 x0 listed", "gone")
	if len(r.joins["flyte"].held) > 0 {
		t.Errorf("%v is held", r.joins["flyte"].held)
	}
	r.Close()
}

// After JoinTime the list of one kind does not wait for that of another any longer.
func TestJoinTime(t *testing.T) {
	r := newJoinRig()
	r.got = nil
	r.Phase(KindRevision, "flyte", PhaseInterrupted)
	r.list(KindService, "21", func() { r.services.OnUpdate(nil, naming("21", "rev-1")) })
	r.expect(t, "the watch of Revisions has ended")
	if n := len(r.clock.waiting); n != 1 || r.clock.waiting[0].after != JoinTime {
		t.Fatalf("%d timers", n)
	}
	r.clock.pass()
	r.expect(t, "the time is over", "21 x3 of rev-1@9 listed")
	r.list(KindService, "22", func() { r.services.OnUpdate(nil, naming("22", "rev-1")) })
	r.expect(t, "another list of Services waits again")
	r.clock.pass()
	r.expect(t, "the time is over again", "22 x3 of rev-1@9 listed")
	r.Phase(KindRevision, "flyte", PhaseWatching)
	r.Phase(KindRevision, "flyte", PhaseInterrupted)
	r.list(KindService, "23", func() { r.services.OnUpdate(nil, naming("23", "rev-1")) })
	r.expect(t, "the next interruption")
	r.Phase(KindRevision, "flyte", PhaseWatching)
	r.expect(t, "the watch goes on", "23 x3 of rev-1@9 listed")

	// A session that starts waits for nothing.
	r.Phase(KindRevision, "flyte", PhaseListing)
	r.list(KindService, "24", func() { r.services.OnUpdate(nil, naming("24", "rev-1")) })
	r.expect(t, "Revisions are listed")
	r.Settle()
	r.expect(t, "a start", "24 x3 of rev-1@9 listed")

	// That a Revision is missing only a complete list shows.
	r.services.OnUpdate(nil, naming("25", "rev-2"))
	r.expect(t, "a rollout", "25 x3 of rev-1@9")
	r.clock.pass()
	r.expect(t, "the Revision is not listed yet")
	r.list(KindRevision, "26", func() {})
	r.clock.pass()
	r.expect(t, "it is not in the list", "25 x0")

	r.Phase(KindRevision, "flyte", PhaseListing)
	r.list(KindService, "27", func() { r.services.OnUpdate(nil, naming("27", "rev-2")) })
	r.Close()
	if n := r.clock.pass(); n != 0 {
		t.Errorf("%d timers run on", n)
	}
}

// A list of Knative Services is waited for, however long it takes. JoinTime begins behind it.
func TestServicesListedLate(t *testing.T) {
	r := newJoinRig()
	r.got = nil
	r.Phase(KindService, "flyte", PhaseListing)
	r.list(KindRevision, "20", func() { r.revisions.OnUpdate(nil, watchedRevision("20", 5)) })
	r.revisions.OnDelete(watchedRevision("21", 5))
	if n := r.clock.pass(); n != 0 {
		t.Errorf("%d timers run while Knative Services are listed", n)
	}
	r.Phase(KindRevision, "flyte", PhaseInterrupted)
	r.expect(t, "Knative Services are listed")
	r.list(KindService, "22", func() { r.services.OnUpdate(nil, naming("22", "rev-1")) })
	r.expect(t, "the watch of Revisions has ended")
	if n := r.clock.pass(); n != 1 {
		t.Errorf("%d timers run", n)
	}
	r.expect(t, "the time for Revisions is over", "22 x0 listed")

	r.Phase(KindService, "flyte", PhaseListing)
	r.list(KindRevision, "23", func() { r.revisions.OnAdd(watchedRevision("23", 1), false) })
	r.expect(t, "Knative Services are listed again")
	r.list(KindService, "24", func() { r.services.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: naming("22", "rev-1")}) })
	r.expect(t, "the app is gone", "lost listed")

	// A list of Knative Services that begins ends the time for the others.
	r.services.OnAdd(naming("30", "rev-1"), false)
	r.Phase(KindRevision, "flyte", PhaseListing)
	r.list(KindService, "31", func() { r.services.OnUpdate(nil, naming("31", "rev-1")) })
	r.expect(t, "created", "new 30 x1 of rev-1@23")
	r.Phase(KindService, "flyte", PhaseListing)
	if n := r.clock.pass(); n != 0 {
		t.Errorf("%d timers run while Knative Services are listed again", n)
	}
	r.expect(t, "Knative Services are listed again")
	r.list(KindService, "32", func() { r.services.OnUpdate(nil, naming("32", "rev-1")) })
	r.list(KindRevision, "33", func() {})
	r.expect(t, "both are listed", "32 x1 of rev-1@23 listed")
	r.Close()
}

// The objects of a list take effect together, in every namespace for itself.
func TestListTakesEffectAtOnce(t *testing.T) {
	r := newJoinRig()
	r.got = nil
	second := naming("12", "rev-1")
	second.Name, second.CreationTimestamp = "later", v1.NewTime(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	r.Phase(KindService, "flyte", PhaseListing)
	r.Listed(KindService, "flyte", "20")
	r.services.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: naming("10", "rev-1")})
	elsewhere := naming("19", "rev-1")
	elsewhere.Namespace = "other"
	elsewhere.Annotations[kservice.AnnotationAppID] = "p/d/elsewhere"
	r.services.OnAdd(elsewhere, false)
	r.expect(t, "another namespace", "new 19 x0 listed")
	r.services.OnAdd(second, false)
	r.expect(t, "half of a list")
	if r.State(watchedID).Service.UID != "u1" {
		t.Error("half of a list took effect")
	}
	first := r.mark(KindService, "flyte", "20")
	r.Listed(KindService, "flyte", "30") // before the informer has delivered the one before
	r.end(KindService, first)
	r.expect(t, "another list was received")
	second = second.DeepCopy()
	second.ResourceVersion = "25"
	r.services.OnUpdate(nil, second)
	r.end(KindService, r.mark(KindService, "flyte", "30"))
	r.expect(t, "the list", "25 x3 of rev-1@9 listed")
	r.Close()
}
