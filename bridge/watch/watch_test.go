package watch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	msgPlainList = "a list made no progress; a plain list follows"
	msgListAgain = "a list made no progress; it is requested again"
	msgReopen    = "a watch had no bookmark for too long; it is opened again"
	msgRelist    = "an informer lists again"
)

const (
	// none is a limit that no test reaches.
	none = time.Hour
	// noProgress is one that only a list without an end reaches.
	noProgress = 3 * time.Second
)

// An API server that never ends a list by watch: a plain list follows, and only the
// first informer waits for it.
func TestListWithoutEnd(t *testing.T) {
	r := newRig(t, watch.Limits{NoProgress: noProgress, NoBookmark: none}, testenv.APIProxyOptions{})
	r.create("one")
	r.proxy.DropEndBookmark()
	first := r.start()
	first.waitSynced()
	first.expect("add one")
	second := r.start()
	second.waitSynced()
	second.expect("add one")
	// A plain list of a busy API server may make no progress for so long, too.
	if got, want := reopened(t, r.group, watch.CauseInitialList), 1+r.logs.FilterMessage(msgListAgain).Len(); got != want {
		t.Errorf("%d lists were given up, want %d", got, want)
	}
	if got, want := r.logs.FilterMessage(msgPlainList).Len(), 1; got != want {
		t.Errorf("%d log lines, want %d", got, want)
	}
	if first.lists() != 1 || second.lists() != 1 {
		t.Errorf("%d and %d lists were announced, want one of each informer", first.lists(), second.lists())
	}
	r.create("two") // the watch that follows works
	first.expect("add one", "add two")
	second.expect("add one", "add two")
}

// The same while other events keep coming.
func TestBusyListWithoutEnd(t *testing.T) {
	r := newRig(t, watch.Limits{NoProgress: noProgress, NoBookmark: none}, testenv.APIProxyOptions{})
	r.create("one")
	r.proxy.DropEndBookmark()
	i := r.start()
	stop := r.keepUpdating("one", 20*time.Millisecond)
	i.waitSynced()
	stop()
	if got, want := r.logs.FilterMessage(msgPlainList).Len(), 1; got != want {
		t.Errorf("%d log lines, want %d", got, want)
	}
}

// keepUpdating changes an object again and again until stop is called.
func (r *rig) keepUpdating(name string, every time.Duration) (stop func()) {
	r.t.Helper()
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-tick.C:
				r.annotate(name, fmt.Sprint(n))
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(done)
		running.Wait()
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) annotate(name, value string) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"test": value}}})
	if err == nil {
		svc := &servingv1.Service{}
		svc.Namespace, svc.Name = r.namespace, name
		err = r.Client.Patch(r.t.Context(), svc, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil && r.t.Context().Err() == nil {
		r.t.Error(err)
	}
}

func (r *rig) delete(svc *servingv1.Service) {
	r.t.Helper()
	if err := r.Client.Delete(r.t.Context(), svc); err != nil {
		r.t.Fatal(err)
	}
}

// The list of a relist does not end: the informer must not wait for it either.
func TestRelistWithoutEnd(t *testing.T) {
	r := newRig(t, watch.Limits{NoProgress: noProgress, NoBookmark: none, Remember: time.Millisecond}, testenv.APIProxyOptions{})
	i := r.start()
	i.waitSynced()
	before := r.logs.FilterMessage(msgPlainList).Len() // a busy API server may have ended that list late
	r.proxy.DropEndBookmark()
	r.proxy.SwallowEvents(1, func(string, string, string) bool { return true })
	r.create("lost")
	r.create("seen")
	i.expect("add seen")
	r.group.Relist("Service", r.namespace, watch.CauseAudit)
	i.expect("add seen", "add lost")
	if got, want := r.logs.FilterMessage(msgPlainList).Len(), before+1; got != want {
		t.Errorf("%d log lines, want %d", got, want)
	}
}

// A watch that is open and silent is opened again where it was, without a list.
func TestFrozenWatch(t *testing.T) {
	r := newRig(t, watch.Limits{NoBookmark: 1500 * time.Millisecond}, testenv.APIProxyOptions{})
	i := r.start()
	i.waitSynced()
	r.proxy.FreezeOpenWatches()
	r.create("one")
	i.expect("add one")
	if got := reopened(t, r.group, watch.CauseNoBookmark); got == 0 {
		t.Error("no watch was opened again")
	}
	if r.logs.FilterMessage(msgReopen).Len() == 0 {
		t.Errorf("nothing is logged of the silent watch")
	}
	if got, want := i.lists(), 1; got != want {
		t.Errorf("the informer listed %d times, want %d", got, want)
	}
}

// A half-open connection: nothing comes, not even its end.
func TestHalfOpenConnection(t *testing.T) {
	r := newRig(t, watch.Limits{NoBookmark: 1500 * time.Millisecond}, testenv.APIProxyOptions{HTTP1: true})
	i := r.start()
	i.waitSynced()
	r.proxy.HalfOpen()
	r.create("one")
	i.expect("add one")
}

// A half-open HTTP/2 connection carries also what is requested after it broke, until
// client-go's pings fail. The watch that is not answered is given up and tried again.
func TestHalfOpenHTTP2(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "2")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	r := newRig(t, watch.Limits{NoProgress: time.Second, NoBookmark: 1500 * time.Millisecond}, testenv.APIProxyOptions{})
	i := r.start()
	i.waitSynced()
	r.proxy.HalfOpen()
	r.create("one")
	i.expect("add one")
}

// Relist shows what the watch did not: each net difference once, a deletion as one
// whose last state is not known.
func TestRelist(t *testing.T) {
	r := newRig(t, watch.Limits{}, testenv.APIProxyOptions{})
	gone, _ := r.create("gone"), r.create("changed")
	i := r.start()
	i.expect("add gone", "add changed")
	r.proxy.SwallowEvents(3, func(string, string, string) bool { return true })
	r.delete(gone)
	r.annotate("changed", "1")
	r.create("new")
	r.create("seen")
	i.expect("add gone", "add changed", "add seen")
	if got, want := len(r.proxy.Swallowed()), 3; got != want {
		t.Fatalf("%d events were swallowed, want %d", got, want)
	}
	r.group.Relist("Revision", r.namespace, watch.CauseAudit) // another informer's
	r.group.Relist("Service", r.namespace, watch.CauseAudit)
	r.group.Relist("Service", r.namespace, watch.CauseAudit) // is pending
	i.expect("add gone", "add changed", "add seen", "missed gone", "update changed", "add new")
	if got, want := reopened(t, r.group, watch.CauseAudit), 1; got != want {
		t.Errorf("%d relists, want %d", got, want)
	}
	if got, want := r.logs.FilterMessage(msgRelist).Len(), 1; got != want {
		t.Errorf("%d log lines, want %d", got, want)
	}
	// It goes on, and can be repeated.
	r.create("later")
	r.group.Relist("Service", r.namespace, watch.CauseBehind)
	i.expect("add gone", "add changed", "add seen", "missed gone", "update changed", "add new", "add later")
	suite.Eventually(t, waitLimit, "a third list", func() error {
		if got := i.lists(); got != 3 {
			return fmt.Errorf("%d lists", got)
		}
		return nil
	})
}

// An API server whose watch cache stands still satisfies a list at the informer's
// last version. Only a consistent one shows what it lacks.
func TestRelistPastAStaleCache(t *testing.T) {
	r := newRig(t, watch.Limits{NoProgress: 600 * time.Millisecond, NoBookmark: none}, testenv.APIProxyOptions{})
	i := r.start()
	i.waitSynced()
	if err := r.proxy.ServeStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.create("one")
	r.group.Relist("Service", r.namespace, watch.CauseAudit)
	i.expect("add one")
}

// So is the plain list in place of the first list by watch.
func TestStartBehindAStaleCache(t *testing.T) {
	r := newRig(t, watch.Limits{NoProgress: 600 * time.Millisecond, NoBookmark: none}, testenv.APIProxyOptions{})
	if err := r.proxy.ServeStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.create("one")
	r.start().expect("add one")
}

// The age of the last message is that of each informer.
func TestAge(t *testing.T) {
	r := newRig(t, watch.Limits{}, testenv.APIProxyOptions{})
	i := r.start()
	i.waitSynced()
	if age := messageAge(t, r.group, r.namespace); age < 0 {
		t.Errorf("the age is %v", age)
	}
	r.proxy.FreezeOpenWatches()
	suite.Eventually(t, waitLimit, "the age of the last message grows", func() error {
		if age := messageAge(t, r.group, r.namespace); age < time.Second {
			return fmt.Errorf("it is %v", age)
		}
		return nil
	})
}

// An informer that ends while it waits leaves nothing behind (TestMain looks).
func TestEndWhileWaiting(t *testing.T) {
	for name, set := range map[string]func(*rig){
		"list without end": func(r *rig) { r.proxy.DropEndBookmark() },
		"frozen":           func(r *rig) { r.proxy.FreezeWatches() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, watch.Limits{}, testenv.APIProxyOptions{})
			set(r)
			i := r.start()
			suite.Eventually(t, waitLimit, "a watch is open", func() error {
				if r.proxy.Watches() == 0 {
					return errors.New("none is")
				}
				return nil
			})
			if i.shared.HasSynced() {
				t.Error("the informer is in sync")
			}
		})
	}
}
