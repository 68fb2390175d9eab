package appsvc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// gated is a cache whose lists wait.
type gated struct {
	*memory
	stranger *app.CachedService // of a project that no test asks for: only lists of everything match
	entered  chan struct{}      // one item for each list that waits
	pass     chan struct{}      // lets one list on; closed: all
	passOwn  chan struct{}      // where it is set, the same for lists of one project
}

func newGated() *gated {
	return &gated{memory: &memory{}, entered: make(chan struct{}, 1000), pass: make(chan struct{})}
}

func (g *gated) Services(match func(*app.CachedService) bool) []*app.CachedService {
	g.entered <- struct{}{}
	if g.passOwn != nil && !match(g.stranger) {
		<-g.passOwn
	} else {
		<-g.pass
	}
	return g.memory.Services(match)
}

// enters waits until one more list is served.
func (g *gated) enters(t *testing.T) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(patience):
		t.Fatal("no list is served")
	}
}

// crowded is a world with a gated cache. Lists that are served and wait keep it busy.
func crowded(t *testing.T, change ...func(*setup)) (*world, *gated) {
	t.Helper()
	g := newGated()
	g.stranger = keeper.Keep(cached(t, subjects.AppID{Project: "stranger", Domain: "d", Name: "a"}))
	g.add(cached(t, checkout))
	w := serve(t, append([]func(*setup){func(s *setup) { s.cache, s.cfg.MaxReads, s.cfg.MaxPendingReads = g, 2, 3 }}, change...)...)
	return w, g
}

// send sends a request whose answer comes to the subscription.
func (w *world) send(subject string) *nats.Subscription {
	w.t.Helper()
	inbox := w.nc.NewInbox()
	sub, err := w.nc.SubscribeSync(inbox)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.nc.PublishRequest(subject, inbox, nil); err != nil {
		w.t.Fatal(err)
	}
	return sub
}

// sendUntil sends a request until one is served, which begun receives: on a busy machine the time
// of a request may be over before.
func (w *world) sendUntil(subject string, begun <-chan struct{}) (sub *nats.Subscription) {
	w.t.Helper()
	soon(w.t, subject+" is served", func() error {
		if sub == nil {
			sub = w.send(subject)
		}
		select {
		case <-begun:
			return nil
		default:
		}
		if n, _, err := sub.Pending(); n > 0 || err != nil {
			sub = nil // that is the answer
		}
		return errNotYet
	})
	return sub
}

// reaches waits for the value of a metric.
func (w *world) reaches(name string, want float64) {
	w.t.Helper()
	soon(w.t, fmt.Sprintf("%s is %v", name, want), func() error {
		if got := w.metric(name); got != want {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})
}

// A read beyond both limits is refused at once, and another project's takes the place of
// the newest of the project that has most.
func TestReadsAreLimited(t *testing.T) {
	t.Parallel()
	w, g := crowded(t)
	list, get := w.listSubject("shop", ""), w.subject(subjects.APIGet, checkout)
	served := []*nats.Subscription{w.send(list), w.send(list)}
	g.enters(t)
	g.enters(t)
	var waiting []*nats.Subscription
	for i := range 3 {
		waiting = append(waiting, w.send(get))
		w.reaches("appbridge_api_pending_reads", float64(i+1))
	}
	w.refused(w.ask(get, "", nil), subjects.CodeResourceExhausted, `max-pending-app-reads: 3 reads are waiting, 3 of project "shop", at most 3 in all`)
	other := w.send(w.subject(subjects.APIIngress, subjects.AppID{Project: "other", Domain: "d", Name: "a"}))
	w.refused(w.next(waiting[2]), subjects.CodeResourceExhausted, "max-pending-app-reads")

	// The other project's is served next, although it came last.
	g.pass <- struct{}{}
	read(w, w.next(other), &appv1.Ingress{})
	close(g.pass)
	for _, sub := range served {
		read(w, w.next(sub), &appv1.ListResponse{})
	}
	for _, sub := range waiting[:2] {
		read(w, w.next(sub), &appv1.GetResponse{})
	}
	w.reaches("appbridge_api_active_reads", 0)
	w.reaches("appbridge_api_pending_reads", 0)
}

// Lists of everything are one project's requests: of the reads they have half while a
// tenant has one.
func TestListOfEverythingHasAShare(t *testing.T) {
	t.Parallel()
	w, g := crowded(t)
	g.passOwn = make(chan struct{})
	all, tenant := w.listSubject("", ""), w.listSubject("shop", "")
	first := []*nats.Subscription{w.send(all), w.send(all)}
	g.enters(t)
	g.enters(t)
	second := w.send(all)
	w.reaches("appbridge_api_pending_reads", 1)
	mine := w.send(tenant)
	w.reaches("appbridge_api_pending_reads", 2)
	g.pass <- struct{}{} // one of everything ends, and the tenant's begins
	g.enters(t)
	select {
	case g.passOwn <- struct{}{}:
	case <-time.After(patience):
		t.Fatal("the list that began is not the tenant's")
	}
	read(w, w.next(mine), &appv1.ListResponse{})
	close(g.pass)
	for _, sub := range append(first, second) {
		read(w, w.next(sub), &appv1.ListResponse{})
	}
}

// A list behind requests for whose answers nobody waits is served without them.
func TestGoneRequestersAreNotServed(t *testing.T) {
	t.Parallel()
	w, g := crowded(t, func(s *setup) { s.cfg.MaxPendingReads = 1000 })
	list := w.listSubject("", "")
	busy := []*nats.Subscription{w.send(list), w.send(list)}
	g.enters(t)
	g.enters(t)
	const burst = 200
	for range burst {
		if err := w.nc.PublishRequest(list, w.nc.NewInbox(), nil); err != nil {
			t.Fatal(err)
		}
	}
	listens := w.send(list)
	soon(t, "the requests without a requester end", func() error {
		if got := w.result("list", "gone"); got != burst {
			return fmt.Errorf("%v have ended", got)
		}
		return nil
	})
	if got := len(g.entered); got != 0 {
		t.Errorf("%d lists were made for nobody", got)
	}
	close(g.pass)
	for _, sub := range append(busy, listens) {
		read(w, w.next(sub), &appv1.ListResponse{})
		if n, _, err := sub.Pending(); n != 0 || err != nil {
			t.Errorf("%d more messages, %v, want none", n, err)
		}
	}
}

// A read that waits for too long is refused, not served late; one that takes too long ends.
func TestReadsEnd(t *testing.T) {
	t.Parallel()
	w, g := crowded(t, func(s *setup) { s.queueTimeout, s.cfg.MaxReads = 50*time.Millisecond, 1 })
	busy := w.sendUntil(w.listSubject("", ""), g.entered)
	w.refused(w.ask(w.subject(subjects.APIGet, checkout), "", nil), subjects.CodeResourceExhausted, "max-app-reads: no turn within 50ms")
	close(g.pass)
	read(w, w.next(busy), &appv1.ListResponse{})

	w, g = crowded(t, func(s *setup) { s.readTimeout = 50 * time.Millisecond })
	busy = w.sendUntil(w.listSubject("", ""), g.entered)
	<-time.After(time.Second) // far more, for busy machines
	close(g.pass)
	w.refused(w.next(busy), subjects.CodeDeadlineExceeded, "not done within 50ms")
}

// A write that waits for another one of its app keeps nothing from other apps.
func TestWriteWaitsForItsAppAlone(t *testing.T) {
	t.Parallel()
	kube, cache := newBlocked(), &memory{}
	kube.endless = true
	w := serve(t, func(s *setup) {
		s.cfg.MaxWrites, s.kube, s.cache, s.queueTimeout = 2, kube.config(), cache, 50*time.Millisecond
	})
	all := []*nats.Subscription{w.begin(kube)}
	stop := func(app string) string {
		return w.subject(subjects.APIStop, subjects.AppID{Project: "shop", Domain: "production", Name: app})
	}
	for range 2 { // each is tried for seconds
		all = append(all, w.send(stop(checkout.Name)))
	}
	all = append(all, w.sendUntil(stop("other"), kube.asked))
	w.refused(w.ask(stop("third"), "", nil),
		subjects.CodeResourceExhausted, "max-app-writes: no turn within 50ms")
	close(kube.released)
	for _, sub := range all {
		w.refused(w.next(sub), subjects.CodeUnavailable)
	}
	w.reaches("appbridge_api_active_writes", 0)
}
