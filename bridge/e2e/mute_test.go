package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// mute is a world whose bridge reaches the API server through a proxy.
type mute struct {
	*world
	proxy *testenv.APIProxy
}

func newMute(t *testing.T, opts testenv.APIProxyOptions) *mute {
	t.Helper()
	w := newWorld(t)
	p := must[*testenv.APIProxy](t)(w.APIProxy(opts))
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &mute{w, p}
}

// limited are limits that a test reaches soon; what it leaves zero is the default.
func (w *mute) launchLimited(limits watch.Limits) *running {
	w.t.Helper()
	cfg := w.config()
	cfg.WatchLimits = limits
	return w.launch(cfg, w.proxy.Config())
}

// logged waits for a log message and returns its first entry's fields.
func (r *running) logged(message string) map[string]any {
	r.t.Helper()
	eventually(r.t, "the log says "+message, func() error {
		if r.logs.FilterMessage(message).Len() == 0 {
			return fmt.Errorf("it does not")
		}
		return nil
	})
	return r.logs.FilterMessage(message).All()[0].ContextMap()
}

// swallow keeps the next event of an app's Knative Service from the bridge.
func (w *mute) swallow(app testenv.App, eventType string) {
	name := app.Service().Name
	w.proxy.SwallowEvents(1, func(kind, got, gotType string) bool {
		return kind == "Service" && got == name && gotType == eventType
	})
}

func (w *mute) waitSwallowed(n int) {
	w.t.Helper()
	eventually(w.t, "the events are swallowed", func() error {
		if got := len(w.proxy.Swallowed()); got != n {
			return fmt.Errorf("%d are, want %d", got, n)
		}
		return nil
	})
}

// The start behind an API server that never ends a list by watch: after the limit
// the lists are plain, and the bridge is ready.
func TestStartWithoutEndOfList(t *testing.T) {
	t.Parallel()
	w := newMute(t, testenv.APIProxyOptions{})
	w.create(w.app("one"))
	w.proxy.DropEndBookmark()
	r := w.launchLimited(watch.Limits{NoProgress: 600 * time.Millisecond, NoBookmark: time.Hour})
	r.waitReady()
	w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	if got := r.metricOf("appbridge_watch_reopened_total", "cause", watch.CauseInitialList); got == 0 {
		t.Error("no list was given up")
	}
	r.logged("a list made no progress; a plain list follows")
}

// A watch that is frozen while the bridge runs: it is opened again and shows what
// happened meanwhile.
func TestFrozenWatches(t *testing.T) {
	t.Parallel()
	w := newMute(t, testenv.APIProxyOptions{})
	r := w.launchLimited(watch.Limits{NoBookmark: 1500 * time.Millisecond})
	r.waitReady()
	w.proxy.FreezeOpenWatches()
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	r.logged("a watch had no bookmark for too long; it is opened again")
	if got := r.metricOf("appbridge_watch_reopened_total", "cause", watch.CauseNoBookmark); got == 0 {
		t.Error("no watch was opened again")
	}
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v sessions, want one", got)
	}
}

// The same on connections of which not even the end comes.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	w := newMute(t, testenv.APIProxyOptions{HTTP1: true})
	r := w.launchLimited(watch.Limits{NoBookmark: 1500 * time.Millisecond})
	r.waitReady()
	w.proxy.HalfOpen()
	w.create(w.app("one"))
	w.waitFor(0, "created one")
}

// A session's start whose informer lacks what the watch did not show: it lists again,
// and each difference is published once, the deletion included.
func TestSessionFindsAnInformerBehind(t *testing.T) {
	t.Parallel()
	w := newMute(t, testenv.APIProxyOptions{})
	gone, changed, missed := w.app("gone"), w.app("changed"), w.app("missed")
	goneService, changedService := w.create(gone), w.create(changed)
	r := w.launchLimited(watch.Limits{NoProgress: time.Second, NoBookmark: time.Hour})
	r.waitReady()
	w.waitFor(0, "created gone", "created changed")

	w.swallow(gone, "DELETED")
	if err := w.Client.Delete(t.Context(), goneService); err != nil {
		t.Fatal(err)
	}
	w.waitSwallowed(1)
	w.swallow(changed, "MODIFIED")
	changedService.Annotations["test"] = "1"
	if err := w.Client.Update(t.Context(), changedService); err != nil {
		t.Fatal(err)
	}
	w.waitSwallowed(2)
	w.swallow(missed, "ADDED")
	w.create(missed)
	w.waitSwallowed(3)
	seen := w.lastSequence()

	if err := w.js.DeleteStream(t.Context(), "KV_"+subjects.DefaultBucket); err != nil { // the session ends
		t.Fatal(err)
	}
	events := w.waitFor(seen, "deleted gone", "updated changed", "created missed")
	for _, e := range events {
		if e.header(subjects.HeaderSynthesized) != "true" {
			t.Errorf("%s %s is not marked as one of a gap", e.kind, e.id)
		}
	}
	r.waitReady()
	fields := r.logged("an informer lists again")
	if fields["cause"] != watch.CauseBehind || fields["kind"] != "Service" || fields["namespace"] != w.namespace {
		t.Errorf("got %v", fields)
	}
	if got, want := len(w.events(seen)), 3; got != want {
		t.Errorf("%d events, want %d", got, want)
	}
}

// While a session waits for an informer that shows nothing, the status names it.
func TestStatusOfAnInformerBehind(t *testing.T) {
	t.Parallel()
	w := newMute(t, testenv.APIProxyOptions{})
	r := w.launchLimited(watch.Limits{NoProgress: time.Second, NoBookmark: time.Hour})
	r.waitReady()
	w.proxy.FreezeWatches()
	if err := w.proxy.ServeStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.create(w.app("one"))
	if err := w.js.DeleteStream(t.Context(), "KV_"+subjects.DefaultBucket); err != nil {
		t.Fatal(err)
	}
	var said []string
	eventually(t, "the status names what is missing", func() error {
		if err := r.bridge.Ready(); err != nil {
			said = append(said, err.Error())
			if strings.Contains(err.Error(), "has not shown Service "+w.namespace+"/") {
				return nil
			}
		}
		return fmt.Errorf("it was %q", slices.Compact(said))
	})
	w.waitFor(0, "created one")
	r.waitReady()
}

// A relist of the pods' informer does not end either: apps' replicas are known.
func TestPodsWithoutEndOfList(t *testing.T) {
	t.Parallel()
	w := newMute(t, testenv.APIProxyOptions{})
	w.proxy.DropEndBookmark()
	r := w.launchLimited(watch.Limits{NoProgress: 600 * time.Millisecond, NoBookmark: time.Hour})
	r.waitReady()
	eventually(t, "the pods are known", func() error {
		_, err := r.bridge.Pods(w.namespace, "any")
		return err
	})
}
