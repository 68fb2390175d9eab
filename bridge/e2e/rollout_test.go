package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// What the chart's Deployment says of its pods.
const (
	deploymentReplicas = 2
	gracePeriod        = 25 * time.Second
	livenessPeriod     = 10 * time.Second
	livenessThreshold  = 6
)

// deployment plays a Deployment with maxSurge 1 and maxUnavailable 0: the processes are its pods.
type deployment struct {
	w       *world
	options []string
	pods    []*replica
	ending  errgroup.Group // pods that terminate
	probing sync.WaitGroup

	mu       sync.Mutex
	restarts int      // that the liveness probe would have caused
	unclean  []string // pods that were killed or reported that they could not flush
}

// start adds a pod and returns when its readiness probe succeeds.
func (d *deployment) start(p program) {
	d.w.t.Helper()
	r := d.w.serve(p, d.options...)
	d.pods = append(d.pods, r)
	d.probing.Go(func() { d.probe(r) })
}

// probe is the liveness probe of a pod, until that ends.
func (d *deployment) probe(r *replica) {
	period := time.NewTicker(livenessPeriod)
	defer period.Stop()
	for failures := 0; ; {
		select {
		case <-r.Done():
			return
		case <-period.C:
		}
		if _, status, err := r.Get(d.w.t.Context(), "/healthz"); err == nil && status == http.StatusOK {
			failures = 0
		} else if failures++; failures == livenessThreshold {
			d.mu.Lock()
			d.restarts++
			d.mu.Unlock()
		}
	}
}

// terminate ends a pod as the kubelet does: SIGTERM, and SIGKILL after the grace period. Nothing
// waits for that, as nothing does in a rolling update.
func (d *deployment) terminate(r *replica) {
	d.pods = slices.DeleteFunc(d.pods, func(other *replica) bool { return other == r })
	d.ending.Go(func() error {
		if err := r.Stop(gracePeriod); err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.unclean = append(d.unclean, err.Error())
		}
		return nil
	})
}

// leader is the pod that leads, or nil.
func (d *deployment) leader() *replica {
	for _, r := range d.pods {
		if r.Metric(d.w.t, "appbridge_leader") == 1 {
			return r
		}
	}
	return nil
}

// update replaces the pods of another program one by one, and returns when the last of those
// has ended. Of the pods to replace, the leader is the first or the last.
func (d *deployment) update(p program, leaderFirst bool) (gap audit.Gap) {
	d.w.t.Helper()
	for {
		i := slices.IndexFunc(d.pods, func(r *replica) bool { return r.name != p.name })
		if i < 0 {
			break
		}
		d.start(p)
		victim, leader := d.pods[i], d.leader()
		for _, r := range d.pods {
			if r.name != p.name && (r == leader) == leaderFirst {
				victim = r
				break
			}
		}
		if (victim == leader || leader == nil) && gap.From.IsZero() {
			gap.From = time.Now()
		}
		d.terminate(victim)
	}
	must[any](d.w.t)(nil, d.ending.Wait())
	return gap
}

// A Deployment's rolling update under load, from an older version to this one and back: two
// replicas, replaced one by one. Every state that etcd held is in the stream once and in order, but
// for hand-overs, of which the net difference is. The bucket is the cluster's state at the end, and
// a reader of the stream sees no sequence twice and misses none.
func TestRollout(t *testing.T) {
	t.Parallel()
	w, history, options, elected := upgradeWorld(t)
	older, newer := w.programs()
	began := time.Now()
	d := &deployment{w: w, options: elected}
	for range deploymentReplicas {
		d.start(older)
	}
	w.waitLeader(d)
	stream := w.readAll()
	done := make(chan struct{})
	load := w.changes(done)
	w.flows(stream, time.Now())

	var gaps []audit.Gap
	terms := []term{{program: older, first: 1}}
	for i, next := range []program{newer, older} {
		terms = append(terms, term{program: next, first: w.lastSequence() + 1})
		gap := d.update(next, i == 0)
		terms[i].last = w.lastSequence() // the last replica of that program has ended
		if gap.From.IsZero() {
			t.Fatal("no leader was replaced: this test tests nothing")
		}
		leader := w.waitLeader(d)
		w.publishesNow(stream, history)
		gap.To, gap.Why = time.Now(), fmt.Sprintf("rollout %d, to the %s one", i+1, next.name)
		gaps = append(gaps, gap)
		t.Logf("%s: %s; the leader of %d replicas is a %s one", time.Since(began).Round(time.Millisecond), gap.Why, len(d.pods), leader.name)
		w.flows(stream, gap.To)
	}
	close(done)
	must[any](t)(nil, load.Wait())
	last := w.create(w.app("last"))
	must[any](t)(nil, history.WaitFor(t.Context(), must[int64](t)(strconv.ParseInt(last.ResourceVersion, 10, 64))))
	for _, p := range []program{older, newer} {
		eventually(t, "verify of the "+p.name+" one finds no difference", func() error { return w.verifies(p, options) })
	}
	for _, r := range slices.Clone(d.pods) {
		d.terminate(r)
	}
	must[any](t)(nil, d.ending.Wait())
	d.probing.Wait()
	eventually(t, "all is read", func() error {
		if read, end := stream.lastSequence(), w.lastSequence(); read != end {
			return fmt.Errorf("up to %d of %d", read, end)
		}
		return nil
	})
	w.checkUpgrade(history.Changes(), stream.messages(), gaps, terms)
	t.Logf("%s: done; restarts by the liveness probe: %d, unclean ends: %q", time.Since(began).Round(time.Millisecond), d.restarts, d.unclean)
	if d.restarts > 0 {
		t.Errorf("the liveness probe would have restarted %d replicas", d.restarts)
	}
}

// waitLeader waits until one of the pods leads and is ready.
func (w *world) waitLeader(d *deployment) (leader *replica) {
	w.t.Helper()
	eventually(w.t, "a replica leads", func() error {
		if leader = d.leader(); leader == nil {
			return fmt.Errorf("none of %d does", len(d.pods))
		}
		return nil
	})
	w.waitLeads(leader)
	return leader
}

// publishesNow waits until a leader has published what changed after this call. What its informers
// show from then on is no gap any more.
func (w *world) publishesNow(stream *reader, history *testenv.History) {
	w.t.Helper()
	healed := history.Seen()
	eventually(w.t, "the leader publishes what changes now", func() error {
		services, revisions := stream.newest(subjects.HeaderResourceVersion), stream.newest(subjects.HeaderRevisionResourceVersion)
		if services <= healed || revisions <= healed {
			return fmt.Errorf("a Service of version %d and a Revision of version %d, etcd was at %d", services, revisions, healed)
		}
		return nil
	})
}

// flows waits until so much was published since a time that no gap near it can be an excuse.
func (w *world) flows(stream *reader, since time.Time) {
	w.t.Helper()
	const excused = 4 * time.Second
	eventually(w.t, "events flow", func() error {
		n := 0
		for _, m := range stream.messages() {
			if m.Stored.After(since.Add(excused)) && m.Header.Get(subjects.HeaderSynthesized) == "" {
				n++
			}
		}
		if n < 50 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}
