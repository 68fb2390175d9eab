package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	hostileReaders    = 100
	hostileRequesters = 50
	hostileMemory     = 512 << 20 // the memory limit of the bridge

	hostileDomain = "production"
	// The apps of a hostile project that have replicas: logs of many empty lines, of few long
	// ones, and one that is being written.
	appEmpty, appLong, appLive = "empty", "long", "live"

	emptyReplicas = 3
	emptyLines    = 230_000 // in a container's log of 10 MiB
	longLines     = 40
	longLine      = 128 << 10

	liveInterval  = 50 * time.Millisecond
	liveRotations = 200 // intervals

	// recoverPatience is how long idle connections to the API server may live.
	recoverPatience = 3 * time.Minute
	// spareGoroutines are for connections that come and go.
	spareGoroutines = 20
)

// hostile is the scenario of that name: many clients of a few projects that do what costs
// the bridge most, and an honest tenant of another project beside them.
type hostile struct {
	w        *world
	kubelet  *testenv.Kubelet
	projects []string
	tenant   *tenant

	requests atomic.Int64 // of the hostile clients
	answers  sync.Map     // by error code, "" for none: *atomic.Int64
}

// playHostile lets them at a bridge with a memory limit.
func playHostile(ctx context.Context, w *world) (err error) {
	h := &hostile{w: w}
	for i := range w.cfg.projects {
		h.projects = append(h.projects, fmt.Sprintf("hostile%d", i+1))
	}
	if h.kubelet, err = w.cluster.StartKubelet(ctx, "node"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.kubelet.Close()) }()
	if err := h.populate(ctx); err != nil {
		return err
	}
	if h.tenant, err = newTenant(ctx, h); err != nil {
		return err
	}
	defer h.tenant.close()
	b := w.bridges[0]
	before, err := h.rest(ctx, b)
	if err != nil {
		return err
	}
	w.out.heading("%d hostile readers and %d hostile requesters of %s for %s", hostileReaders, hostileRequesters, many(len(h.projects), "project"), w.cfg.length)
	if err := h.attack(ctx); err != nil {
		return err
	}
	w.out.heading("Letting everything come back")
	after, err := h.recovered(ctx, b, before)
	if err != nil {
		return err
	}
	h.conclude(before, after)
	return w.appbridgeVerify(ctx)
}

// populate creates the apps and their replicas.
func (h *hostile) populate(ctx context.Context) error {
	h.w.out.heading("Creating %d apps", h.w.cfg.apps)
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(churnWriters)
	for n := range h.w.cfg.apps {
		g.Go(func() error {
			app := testenv.App{
				Project: h.projects[n%len(h.projects)], Domain: hostileDomain, Name: fmt.Sprintf("app-%05d", n),
				Args: []string{strings.Repeat("argument ", 256)},
			}
			return insistOn(limited, func() error {
				_, err := h.w.cluster.Create(limited, app)
				return ignore(err, apierrors.IsAlreadyExists)
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, project := range h.projects {
		for range emptyReplicas {
			pod, err := h.replica(ctx, project, appEmpty)
			if err != nil {
				return err
			}
			pod.FillPast(emptyLines, time.Millisecond, func(int) string { return "" })
		}
		pod, err := h.replica(ctx, project, appLong)
		if err != nil {
			return err
		}
		text := strings.Repeat("x", longLine)
		pod.FillPast(longLines, time.Second, func(int) string { return text })
		if pod, err = h.replica(ctx, project, appLive); err != nil {
			return err
		}
		h.w.spawn(func(ctx context.Context) { writeOn(ctx, pod) })
	}
	return nil
}

// replica runs one more pod of an app, which it creates when it is not there.
func (h *hostile) replica(ctx context.Context, project, name string) (*testenv.Pod, error) {
	app := testenv.App{Project: project, Domain: hostileDomain, Name: name}
	svc, err := h.w.cluster.Create(ctx, app)
	if apierrors.IsAlreadyExists(err) {
		svc = app.Service()
		err = h.w.cluster.Client.Get(ctx, types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, svc)
	}
	if err != nil {
		return nil, err
	}
	return h.kubelet.RunPod(ctx, testenv.PodOptions{
		Service: svc.Name, Revision: svc.Name + "-00001", Log: testenv.InMemory,
		Labels: map[string]string{"serving.knative.dev/serviceUID": string(svc.UID)},
	})
}

// writeOn has a pod write, and its log rotate, for as long as the world is there.
func writeOn(ctx context.Context, pod *testenv.Pod) {
	lines := slices.Repeat([]string{strings.Repeat("y", 100)}, 50)
	for n := 1; testenv.Pause(ctx, liveInterval) == nil; n++ {
		pod.Write(lines...)
		if n%liveRotations == 0 {
			pod.Rotate()
		}
	}
}

// attack lets everybody at the bridge for the length of the run.
func (h *hostile) attack(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, h.w.cfg.length)
	defer cancel()
	var all sync.WaitGroup
	begin := func(n int, attacks []attack) {
		for i := range n {
			// Attack by attack and project by project: each project has all attacks.
			a := &attacker{h: h, number: i, project: h.projects[i/len(attacks)%len(h.projects)]}
			all.Go(func() { a.run(limited, attacks[i%len(attacks)]) })
		}
	}
	begin(hostileReaders, readerAttacks())
	begin(hostileRequesters, requesterAttacks())
	h.tenant.begin(limited, &all)
	all.Go(func() {
		for testenv.Pause(limited, progressInterval) == nil {
			m, err := memoryOf(h.w.bridges[0])
			if err != nil {
				continue // its end is a failure already
			}
			h.w.out.now("%d hostile requests; %s; resident %s, at most %s", h.requests.Load(), h.tenant.progress(), m.resident, m.peak)
		}
	})
	all.Wait()
	return ctx.Err()
}

// standing is what a bridge has at rest.
type standing struct {
	memory
	goroutines float64
	used       time.Duration // processor time
}

// rest waits until nothing is held for a request, and is what the bridge then has.
func (h *hostile) rest(ctx context.Context, b *bridge) (standing, error) {
	s := standing{}
	if err := poll(ctx, recoverPatience, func(ctx context.Context) string { return h.held(b.look(ctx)) }); err != nil {
		return s, fmt.Errorf("the bridge does not come to rest: %w", err)
	}
	s.goroutines = b.lastSeen().metrics["go_goroutines"]
	return s, s.measure(b)
}

// measure reads what the system knows of the process.
func (s *standing) measure(b *bridge) (err error) {
	if s.memory, err = memoryOf(b); err == nil {
		s.used, err = b.processorTime()
	}
	return err
}

// heldMetrics count what is held for requests.
var heldMetrics = regexp.MustCompile(`^appbridge_(log|api)_(pod_)?(streams|(active|pending|waiting)[a-z_]*|[a-z_]*(active|pending|waiting))(\{.*\})?$`) //nolint:gochecknoglobals // a constant

// held names what is still held, "" if nothing is.
func (h *hostile) held(s status) string {
	if !s.answered {
		return cmp.Or(s.why, "it does not answer")
	}
	var names []string
	for name, value := range s.metrics {
		if heldMetrics.MatchString(name) && value != 0 {
			names = append(names, fmt.Sprintf("%s is %.0f", name, value))
		}
	}
	if n := h.kubelet.Followers(); n > 0 {
		names = append(names, fmt.Sprintf("%d logs are open at the kubelet", n))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// recovered waits until the bridge has given back what it took. What it keeps is a failure.
func (h *hostile) recovered(ctx context.Context, b *bridge, before standing) (standing, error) {
	began := time.Now()
	err := poll(ctx, recoverPatience, func(ctx context.Context) string {
		s := b.look(ctx)
		if why := h.held(s); why != "" {
			return why
		}
		if n := s.metrics["go_goroutines"]; n > before.goroutines+spareGoroutines {
			return fmt.Sprintf("there are %.0f goroutines, %.0f before", n, before.goroutines)
		}
		if s.metrics[metricPending] > 0 {
			return fmt.Sprintf("%.0f changes wait for the stream", s.metrics[metricPending])
		}
		return ""
	})
	switch {
	case ctx.Err() != nil:
		return standing{}, ctx.Err()
	case err != nil:
		h.w.fail("not everything came back within %s: %v", recoverPatience, err)
	default:
		h.w.out.now("everything is back after %s", show(time.Since(began)))
	}
	after := standing{goroutines: b.lastSeen().metrics["go_goroutines"]}
	return after, after.measure(b)
}

// conclude judges, and prints the line of the scenario.
func (h *hostile) conclude(before, after standing) {
	t := h.tenant
	for name, l := range map[string]*latencies{"get": &t.logs, "list": &t.list, "get of an app": &t.app} {
		if broken := l.broken(); broken != "" {
			h.w.fail("the honest tenant's %s: %s", name, broken)
		}
	}
	if broken := t.events.broken(); broken != "" {
		h.w.fail("events: %s", broken)
	}
	if after.peak > hostileMemory>>10 {
		h.w.fail("the bridge took %s, its limit is %d MiB", after.peak, hostileMemory>>20)
	}
	h.w.mu.Lock()
	broken := len(h.w.failures)
	h.w.mu.Unlock()
	h.w.out.line("   answers to hostile requests  %s", h.outcomes())
	h.w.last = append(h.w.last, fmt.Sprintf(
		"hostile: seconds=%.0f projects=%d requests=%d get=%s list=%s app=%s events=%s memory_before=%d memory_peak=%d memory_after=%d limit=%d cpu=%.0fs goroutines_before=%.0f goroutines_after=%.0f broken=%d",
		h.w.cfg.length.Seconds(), len(h.projects), h.requests.Load(), &t.logs, &t.list, &t.app, &t.events,
		before.resident>>10, after.peak>>10, after.resident>>10, hostileMemory>>20, (after.used-before.used).Seconds(), before.goroutines, after.goroutines, broken,
	))
}

// count notes a request, and its answer when there was one.
func (h *hostile) count(code string) {
	n, _ := h.answers.LoadOrStore(code, &atomic.Int64{})
	n.(*atomic.Int64).Add(1)
}

// outcomes are the answers by code.
func (h *hostile) outcomes() string {
	all := map[string]int64{}
	h.answers.Range(func(code, n any) bool {
		all[code.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s: %d", cmp.Or(code, "ok"), all[code]))
	}
	return strings.Join(parts, ", ")
}

func hostileApp(project, name string) subjects.AppID {
	return subjects.AppID{Project: project, Domain: hostileDomain, Name: name}
}
