package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

func inNamespace(ns string) client.ListOption { return client.InNamespace(ns) }
func managed() client.ListOption              { return client.MatchingLabels{"flyte.org/app-managed": "true"} }

func (w *world) app(name string) testenv.App {
	return testenv.App{Project: "vision", Domain: "development", Name: name, Org: "acme", Namespace: w.namespace}
}

func (w *world) create(app testenv.App) *servingv1.Service {
	w.t.Helper()
	return must[*servingv1.Service](w.t)(w.Create(w.t.Context(), app))
}

// waitFor waits until the stream holds, after a sequence, exactly the kinds
// want, written as "kind app" and sorted.
func (w *world) waitFor(after uint64, want ...string) []stored {
	w.t.Helper()
	slices.Sort(want)
	var events []stored
	eventually(w.t, "the stream holds "+strings.Join(want, ", "), func() error {
		events = w.events(after)
		var got []string
		for _, e := range events {
			got = append(got, fmt.Sprintf("%s %s", e.kind, e.id.Name))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			err := fmt.Errorf("it holds %s", strings.Join(got, ", "))
			if len(got) > len(want) {
				return fmt.Errorf("%w: %w", errFatal, err)
			}
			return err
		}
		return nil
	})
	return events
}

// life is what happens to one app of the large test.
type life struct {
	app testenv.App
	end string // "", "delete", "recreate", "unlabel", "relabel"
}

func (w *world) live(l life, updates int) error {
	ctx := w.t.Context()
	svc, err := w.Create(ctx, l.app)
	if err != nil {
		return err
	}
	for i := range updates {
		switch i % 3 {
		case 0:
			_, err = w.Progressing(ctx, svc)
		case 1:
			_, err = w.Failed(ctx, svc, "RevisionFailed", fmt.Sprintf("try %d", i))
		default:
			_, err = w.Patch(ctx, svc, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"note": fmt.Sprint(i)}}})
		}
		if err != nil {
			return err
		}
	}
	switch l.end {
	case "delete":
		return w.Client.Delete(ctx, svc)
	case "recreate":
		if err := w.Client.Delete(ctx, svc); err != nil {
			return err
		}
		_, err = w.Create(ctx, l.app)
	case "unlabel":
		_, err = w.SetLabel(ctx, svc, "flyte.org/app-managed", "")
	case "relabel":
		if _, err = w.SetLabel(ctx, svc, "flyte.org/app-managed", ""); err == nil {
			_, err = w.SetLabel(ctx, svc, "flyte.org/app-managed", "true")
		}
	}
	return err
}

// begin returns at once and lets n apps live, limit at a time, each with so
// many updates and the end that end names.
func (w *world) begin(n, limit, updates int, end func(i int) string) *errgroup.Group {
	g := &errgroup.Group{}
	turn := make(chan struct{}, limit)
	for i := range n {
		g.Go(func() error {
			turn <- struct{}{}
			defer func() { <-turn }()
			return w.live(life{app: w.app(fmt.Sprintf("app-%d", i)), end: end(i)}, updates)
		})
	}
	return g
}

// loading returns what tells whether the lives that begin began still go on.
func (w *world) loading(g *errgroup.Group) func() bool {
	done := make(chan error, 1)
	go func() { done <- g.Wait() }()
	busy := true
	return func() bool {
		w.t.Helper()
		select {
		case err := <-done:
			busy = false
			if err != nil {
				w.t.Fatal(err)
			}
		default:
		}
		return busy
	}
}

// recreateEvery has each nth life end with a recreate.
func recreateEvery(nth int) func(int) string {
	return func(i int) string {
		if i%nth == 0 {
			return "recreate"
		}
		return ""
	}
}

// finish makes one last change, waits until the recorder has seen it, and
// returns all that it has seen.
func (w *world) finish(recorder *testenv.Recorder) []testenv.Observation {
	w.t.Helper()
	last := w.create(w.app("last"))
	must[testenv.Observation](w.t)(recorder.Wait(w.t.Context(), func(o testenv.Observation) bool { return o.Name == last.Name }))
	if err := recorder.Stop(); err != nil {
		w.t.Fatal(err)
	}
	return recorder.Observations()
}

// Every state that the API server shows is in the stream, once and in order,
// and the bucket ends up equal to the cluster.
func TestEveryState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	recorder := must[*testenv.Recorder](t)(w.Record(t.Context(), w.namespace))

	const apps, updates = 100, 10
	g, _ := errgroup.WithContext(t.Context())
	g.SetLimit(16)
	for _, i := range rand.Perm(apps) {
		l := life{app: w.app(fmt.Sprintf("app-%03d", i))}
		switch {
		case i%3 == 0:
			l.end = "delete"
		case i%15 == 1:
			l.end = "recreate"
		case i%15 == 4:
			l.end = "unlabel"
		case i%15 == 7:
			l.end = "relabel"
		}
		g.Go(func() error { return w.live(l, updates) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	observations := w.finish(recorder)
	w.holdsAll(observations)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	events := w.events(0)
	w.checkOrder(w.truth(observations), events)
	w.checkHeaders(events)
	if err := w.bucketDrift(cfg.App, events); err != nil {
		t.Error(err)
	}
	for _, name := range []string{subjects.HeaderSynthesized, subjects.HeaderMergedUpdates, subjects.HeaderFinalStateUnknown} {
		for _, e := range events {
			if e.header(name) != "" {
				t.Errorf("sequence %d has header %s", e.sequence, name)
			}
		}
	}
	t.Logf("%d states of %d apps, %d events", len(observations), apps+1, len(events))
}

func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	const apps = 100
	g, _ := errgroup.WithContext(t.Context())
	g.SetLimit(16)
	services := make([]*servingv1.Service, apps)
	for i := range apps {
		g.Go(func() (err error) {
			services[i], err = w.Create(t.Context(), w.app(fmt.Sprintf("app-%03d", i)))
			if err == nil && i%2 == 0 {
				_, err = w.Ready(t.Context(), services[i], "", 2)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	r := w.start(cfg)
	first := w.events(0)
	if len(first) != apps {
		t.Fatalf("the first start published %d events, want %d", len(first), apps)
	}
	for _, e := range first {
		if e.kind != subjects.Created || e.header(subjects.HeaderSynthesized) != "true" {
			t.Errorf("sequence %d: %s, synthesized %q; want a synthesized create", e.sequence, e.kind, e.header(subjects.HeaderSynthesized))
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	t.Run("unchanged", func(t *testing.T) {
		before := w.lastSequence()
		if err := w.start(cfg).stop(); err != nil {
			t.Fatal(err)
		}
		if got := w.lastSequence() - before; got != 0 {
			t.Errorf("a restart with nothing changed published %d events: %v", got, w.events(before))
		}
	})

	t.Run("changed", func(t *testing.T) {
		ctx, before := t.Context(), w.lastSequence()
		w.create(w.app("born"))
		must[*servingv1.Service](t)(w.Progressing(ctx, services[1]))
		must[*servingv1.Service](t)(w.Failed(ctx, services[1], "Broken", "twice changed is once told"))
		must[any](t)(nil, w.Client.Delete(ctx, services[2]))
		must[any](t)(nil, w.Client.Delete(ctx, services[3]))
		again := w.create(w.app("app-003"))
		must[*servingv1.Service](t)(w.SetLabel(ctx, services[5], "flyte.org/app-managed", ""))
		must[*servingv1.Revision](t)(w.Scale(ctx, services[4], 5))
		short := w.create(w.app("came-and-went"))
		must[any](t)(nil, w.Client.Delete(ctx, short))

		r := w.start(cfg)
		events := w.waitFor(before, "created born", "updated app-001", "deleted app-002",
			"deleted app-003", "created app-003", "deleted app-005", "updated app-004")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		all := w.events(0)
		w.checkHeaders(all)
		if err := w.bucketDrift(cfg.App, all); err != nil {
			t.Error(err)
		}
		for _, e := range events {
			if e.header(subjects.HeaderSynthesized) != "true" {
				t.Errorf("%s %s is not marked as synthesized", e.kind, e.id)
			}
			if got, want := e.header(subjects.HeaderFinalStateUnknown), e.kind == subjects.Deleted; (got == "true") != want {
				t.Errorf("%s %s: final state unknown is %q", e.kind, e.id, got)
			}
		}
		for i, e := range events {
			if e.id.Name == "app-003" && e.kind == subjects.Created {
				if e.header(subjects.HeaderUID) != string(again.UID) {
					t.Errorf("app-003 came back as %s, want %s", e.header(subjects.HeaderUID), again.UID)
				}
				if !slices.ContainsFunc(events[:i], func(d stored) bool { return d.id == e.id && d.kind == subjects.Deleted }) {
					t.Error("app-003 was created before it was deleted")
				}
			}
			if e.id.Name == "app-004" {
				if got := e.app().GetStatus().GetCurrentReplicas(); got != 5 {
					t.Errorf("app-004 has %d replicas, want 5", got)
				}
			}
		}
	})

	t.Run("unchanged again", func(t *testing.T) {
		before := w.lastSequence()
		if err := w.start(cfg).stop(); err != nil {
			t.Fatal(err)
		}
		if got := w.lastSequence() - before; got != 0 {
			t.Errorf("a restart with nothing changed published %d events: %v", got, w.events(before))
		}
	})
}
