package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// heldLists are lists of informers that wait at the proxy before the API server makes them.
type heldLists struct {
	t *testing.T

	mu      sync.Mutex
	arrived map[string]bool
	open    map[string]chan struct{}
}

// holdLists keeps back the lists of all kinds.
func (w *mute) holdLists() *heldLists {
	h := &heldLists{t: w.t, arrived: map[string]bool{}, open: map[string]chan struct{}{}}
	for _, resource := range []string{"services", "revisions", "pods"} {
		h.open[resource] = make(chan struct{})
	}
	w.proxy.GateLists(func(ctx context.Context, resource string, answered bool) {
		if answered {
			return
		}
		h.mu.Lock()
		h.arrived[resource] = true
		open := h.open[resource]
		h.mu.Unlock()
		select {
		case <-open:
		case <-ctx.Done():
		}
	})
	return h
}

// waitArrived waits until the informers of all kinds list.
func (h *heldLists) waitArrived() {
	h.t.Helper()
	eventually(h.t, "all informers list", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.arrived) < len(h.open) {
			return fmt.Errorf("only %v do", h.arrived)
		}
		return nil
	})
}

func (h *heldLists) release(resource string) { close(h.open[resource]) }

// apartWorld has apps whose pods have a reason, behind a proxy.
type apartWorld struct {
	*mute
	services map[string]*servingv1.Service
}

func newApartWorld(t *testing.T, names ...string) *apartWorld {
	t.Helper()
	w := &apartWorld{newMute(t, testenv.APIProxyOptions{}), map[string]*servingv1.Service{}}
	for _, name := range names {
		w.up(name, w.create(w.app(name)), 1, "a")
	}
	return w
}

// up makes the newest Revision of an app ready, with one pod that waits for its image.
func (w *apartWorld) up(name string, svc *servingv1.Service, replicas int32, pod string) {
	w.t.Helper()
	svc = must[*servingv1.Service](w.t)(w.Ready(w.t.Context(), svc, "", replicas))
	w.services[name] = svc
	w.pod(name, pod)
}

func (w *apartWorld) pod(name, pod string) {
	w.t.Helper()
	svc := w.services[name]
	must[any](w.t)(nil, w.SetPod(w.t.Context(), svc, svc.Status.LatestCreatedRevisionName, name+"-"+pod, testenv.PodWaiting("ErrImagePull", "", 0)))
}

// unpod deletes the first pod of an app.
func (w *apartWorld) unpod(name string) {
	w.t.Helper()
	must[any](w.t)(nil, w.DeletePod(w.t.Context(), w.namespace, name+"-a"))
}

// launchApart starts a bridge with pod conditions behind the proxy, and waits until it is ready.
func (w *apartWorld) launchApart(limits watch.Limits) *running {
	w.t.Helper()
	cfg := w.config()
	cfg.PodConditions, cfg.WatchLimits = true, limits
	r := w.launch(cfg, w.proxy.Config())
	r.waitReady()
	return r
}

// launchChanging starts a bridge with the apps of changesUnseen. All of them are published up to seen.
func launchChanging(t *testing.T, limits watch.Limits) (w *apartWorld, r *running, seen uint64) {
	t.Helper()
	w = newApartWorld(t, "gone", "scaled", "replaced", "rolled", "recreated")
	r = w.launchApart(limits)
	w.waitFor(0, "created gone", "created scaled", "created replaced", "created rolled", "created recreated")
	return w, r, w.lastSequence()
}

// changesUnseen changes the apps of launchChanging in every way.
func (w *apartWorld) changesUnseen() {
	w.t.Helper()
	ctx := w.t.Context()
	// An app with all that it has.
	must[any](w.t)(nil, w.Delete(ctx, w.services["gone"]))
	w.unpod("gone")
	// The count alone.
	must[*servingv1.Revision](w.t)(w.Scale(ctx, w.services["scaled"], 3))
	// The pods alone: another one waits for the same.
	w.unpod("replaced")
	w.pod("replaced", "b")
	// A rollout, after which the first Revision and its pod are gone.
	first, next := w.services["rolled"], w.app("rolled")
	next.Image = "registry.example.com/rolled:2"
	w.up("rolled", must[*servingv1.Service](w.t)(w.Redeploy(ctx, next)), 2, "b")
	must[any](w.t)(nil, w.DeleteRevision(ctx, first))
	w.unpod("rolled")
	// Another object, with pods of its own.
	must[any](w.t)(nil, w.Delete(ctx, w.services["recreated"]))
	w.unpod("recreated")
	w.up("recreated", w.create(w.app("recreated")), 2, "b")
}

// shows waits until the bridge has what a list of a resource has.
func (w *apartWorld) shows(r *running, resource string) {
	w.t.Helper()
	eventually(w.t, "the list of "+resource+" is in", func() error {
		switch resource {
		case "services":
			if _, there := r.bridge.App(w.app("gone").ID()); there {
				return errors.New("the deleted app is there")
			}
		case "revisions":
			entry, _ := r.bridge.App(w.app("scaled").ID())
			if n := entry.Revision.Status.ActualReplicas; *n != 3 {
				return fmt.Errorf("the app has %d replicas", *n)
			}
		case "pods":
			pods, err := r.bridge.Pods(w.namespace, w.services["replaced"].Name)
			if err != nil || len(pods) != 1 || pods[0].Name != "replaced-b" {
				return fmt.Errorf("the pods are %v, %w", pods, err)
			}
		}
		return nil
	})
}

// storyOf is what events say of each app, in order.
func storyOf(events []stored) map[string]string {
	story := map[string]string{}
	for _, e := range events {
		text := string(e.kind)
		if e.kind != subjects.Deleted {
			text += fmt.Sprintf(" x%d %s", e.app().GetStatus().GetCurrentReplicas(), e.header(subjects.HeaderReason))
		}
		if e.header(subjects.HeaderSynthesized) == "" {
			text += " observed"
		}
		story[e.id.Name] = strings.TrimPrefix(story[e.id.Name]+", "+text, ", ")
	}
	return story
}

// The watches of all kinds expire, the cluster changes, and the lists end one after the other, in
// each order. Each app has its net difference and no state between.
func TestListsApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		limits watch.Limits
	}{
		{"lists by watch", watch.Limits{NoBookmark: time.Hour}},
		{"plain lists after stuck ones", watch.Limits{NoProgress: 600 * time.Millisecond, NoBookmark: time.Hour}},
	} {
		for _, order := range []string{
			"services revisions pods", "services pods revisions", "revisions services pods",
			"revisions pods services", "pods services revisions", "pods revisions services",
		} {
			t.Run(test.name+" "+order, func(t *testing.T) {
				t.Parallel()
				w, r, seen := launchChanging(t, test.limits)

				held := w.holdLists()
				w.proxy.ExpireWatches()
				held.waitArrived()
				w.changesUnseen()
				for _, resource := range strings.Fields(order) {
					held.release(resource)
					w.shows(r, resource)
				}
				w.publishLast(seen)
				w.netDifferences(seen)
			})
		}
	}
}

// The list of Knative Services comes later than JoinTime, when those of Revisions and pods are there
// for long. No state of an app that is gone is published meanwhile.
func TestServicesListedLate(t *testing.T) {
	t.Parallel()
	w, r, seen := launchChanging(t, watch.Limits{NoBookmark: time.Hour})
	held := w.holdLists()
	w.proxy.ExpireWatches()
	held.waitArrived()
	w.changesUnseen()
	held.release("revisions")
	held.release("pods")
	w.shows(r, "pods")
	must[any](t)(nil, testenv.Pause(t.Context(), watch.JoinTime+2*time.Second)) // nothing is to happen
	held.release("services")
	w.publishLast(seen)
	w.netDifferences(seen)
}

// netDifferences fails unless the events after a sequence are the net differences of changesUnseen,
// and the creation of the last app.
func (w *apartWorld) netDifferences(after uint64) {
	w.t.Helper()
	got := storyOf(w.events(after))
	for name, want := range map[string]string{
		"gone": "deleted", "scaled": "updated x3 IMAGE_PULL_ERROR", "replaced": "", "rolled": "updated x2 IMAGE_PULL_ERROR",
		"recreated": "deleted, created x2 IMAGE_PULL_ERROR", "last": "created x0  observed",
	} {
		if got[name] != want {
			w.t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
}

// The watches of all kinds are frozen, and a session's start finds the informers behind: they list
// together.
func TestSessionFindsAllInformersBehind(t *testing.T) {
	t.Parallel()
	w, r, seen := launchChanging(t, watch.Limits{NoProgress: time.Second, NoBookmark: time.Hour})
	w.proxy.FreezeOpenWatches()
	w.changesUnseen()
	must[any](t)(nil, w.js.DeleteStream(t.Context(), "KV_"+subjects.DefaultBucket)) // the session ends
	for _, resource := range []string{"services", "revisions", "pods"} {
		w.shows(r, resource)
	}
	r.waitReady()
	w.publishLast(seen)
	w.netDifferences(seen)
}

// An app comes while the informers are blind, is in the list that a session's start makes, and goes
// before the informers list again: nothing is going to show it. The session does not wait for it.
func TestSessionListsAnAppThatGoes(t *testing.T) {
	t.Parallel()
	w := newApartWorld(t, "stays")
	r := w.launchApart(watch.Limits{NoProgress: time.Second, NoBookmark: time.Hour})
	w.waitFor(0, "created stays")
	seen := w.lastSequence()
	w.proxy.FreezeOpenWatches()
	w.up("goes", w.create(w.app("goes")), 1, "a")
	held := w.holdLists()
	must[any](t)(nil, w.js.DeleteStream(t.Context(), "KV_"+subjects.DefaultBucket)) // the session ends
	held.waitArrived()
	must[any](t)(nil, w.Delete(t.Context(), w.services["goes"]))
	must[any](t)(nil, w.DeleteRevision(t.Context(), w.services["goes"]))
	w.unpod("goes")
	for _, resource := range []string{"services", "revisions", "pods"} {
		held.release(resource)
	}
	r.waitReady()
	w.publishLast(seen)
	if got := storyOf(w.events(seen)); got["goes"] != "" || got["stays"] != "" {
		t.Errorf("got %q, want no event but of the last app", got)
	}
}

// The watch of Revisions stays behind that of Knative Services while an app is deleted and created
// again: the first Revision of the new object has the name of the former one's, whose count is not its.
func TestRevisionOfFormerObject(t *testing.T) {
	t.Parallel()
	w := newApartWorld(t, "again")
	former := w.services["again"]
	must[*servingv1.Service](t)(w.Ready(t.Context(), former, "", 3))
	w.launchApart(watch.Limits{NoBookmark: time.Hour})
	w.waitFor(0, "created again")
	seen := w.lastSequence()
	w.proxy.SwallowEvents(math.MaxInt, func(kind, _, _ string) bool { return kind == "Revision" })
	must[any](t)(nil, w.Delete(t.Context(), former))
	must[any](t)(nil, w.DeleteRevision(t.Context(), former))
	w.unpod("again")
	w.up("again", w.create(w.app("again")), 1, "b")
	says := func(text string) {
		t.Helper()
		eventually(t, "an event says "+text, func() error {
			if story := storyOf(w.events(seen))["again"]; !strings.Contains(story, text) {
				return fmt.Errorf("got %q", story)
			}
			return nil
		})
	}
	says("IMAGE_PULL_ERROR") // so the Service has named its Revision
	w.proxy.SwallowEvents(0, nil)
	must[*servingv1.Revision](t)(w.Scale(t.Context(), w.services["again"], 2))
	says("x2 IMAGE_PULL_ERROR")
	if story := storyOf(w.events(seen))["again"]; strings.Contains(story, "x3") {
		t.Errorf("got %q: the former object had 3 replicas", story)
	}
}

// publishLast creates the last app, and waits until there is an event of it after a sequence.
func (w *apartWorld) publishLast(after uint64) {
	w.t.Helper()
	w.create(w.app("last"))
	eventually(w.t, "the last app is published", func() error {
		if !slices.ContainsFunc(w.events(after), func(e stored) bool { return e.id.Name == "last" }) {
			return errors.New("it is not")
		}
		return nil
	})
}

// A list of pods that does not come holds back nothing that is observed: Knative Services and counts
// are published with what the pods said last. What the other lists showed follows after a time.
func TestListThatIsMissing(t *testing.T) {
	t.Parallel()
	w := newApartWorld(t, "changed", "scaled", "gone", "missed")
	r := w.launchApart(watch.Limits{NoBookmark: time.Hour})
	w.waitFor(0, "created changed", "created scaled", "created gone", "created missed")
	seen := w.lastSequence()
	held := w.holdLists()
	w.proxy.ExpireWatches()
	held.waitArrived()
	must[*servingv1.Revision](t)(w.Scale(t.Context(), w.services["missed"], 4))
	for _, name := range []string{"changed", "scaled", "gone", "missed"} {
		w.unpod(name) // which nothing shows
	}
	held.release("services")
	held.release("revisions")
	eventually(t, "the list of Revisions is in", func() error {
		entry, _ := r.bridge.App(w.app("missed").ID())
		if n := entry.Revision.Status.ActualReplicas; *n != 4 {
			return fmt.Errorf("the app has %d replicas", *n)
		}
		return nil
	})
	must[*servingv1.Service](t)(w.SetLabel(t.Context(), w.services["changed"], "test", "1"))
	must[*servingv1.Revision](t)(w.Scale(t.Context(), w.services["scaled"], 2))
	must[any](t)(nil, w.Delete(t.Context(), w.services["gone"]))
	eventually(t, "all is published with the reason before", func() error {
		got, want := storyOf(w.events(seen)), map[string]string{
			"changed": "updated x1 IMAGE_PULL_ERROR observed", "scaled": "updated x2 IMAGE_PULL_ERROR observed",
			"missed": "updated x4 IMAGE_PULL_ERROR",
		}
		for name, text := range want {
			if got[name] != text {
				return fmt.Errorf("%s: got %q, want %q", name, got[name], text)
			}
		}
		if !strings.HasSuffix(got["gone"], "deleted observed") {
			return fmt.Errorf("gone: got %q", got["gone"])
		}
		return nil
	})
	seen = w.lastSequence()
	held.release("pods")
	w.waitFor(seen, "updated changed", "updated scaled", "updated missed")
	for name, text := range storyOf(w.events(seen)) {
		if strings.Contains(text, "IMAGE_PULL_ERROR") {
			t.Errorf("%s: got %q", name, text)
		}
	}
}
