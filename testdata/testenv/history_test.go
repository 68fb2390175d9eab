package testenv_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func history(t *testing.T, c *testenv.Cluster) *testenv.History {
	t.Helper()
	h, err := c.History(t.Context(), testenv.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func revisionOf(t *testing.T, obj client.Object) int64 {
	t.Helper()
	return must[int64](t)(strconv.ParseInt(obj.GetResourceVersion(), 10, 64))
}

// lines are the versions of the Services, one per line.
func lines(changes []testenv.Change) []string {
	var all []string
	for _, c := range changes {
		if c.Kind == "Service" {
			all = append(all, fmt.Sprintf("%s %s %s deleted=%t", c.ResourceVersion, c.Name, c.UID, c.Deleted))
		}
	}
	return all
}

func TestHistoryIsWhatTheAPIServerShows(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, testenv.Options{Namespaces: []string{testenv.DefaultNamespace, "other"}})
	service := must[*servingv1.Service](t)
	before := service(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "before"}))
	r, h := record(t, c), history(t, c)
	service(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "elsewhere", Namespace: "other"}))

	var load errgroup.Group
	for i := range 8 {
		load.Go(func() error {
			for range 3 { // lives of one app
				svc, err := c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: fmt.Sprint("app-", i)})
				if err != nil {
					return err
				}
				if svc, err = c.Rollout(ctx, svc, "", 2); err != nil {
					return err
				}
				if _, err := c.Scale(ctx, svc, 3); err != nil {
					return err
				}
				if err := c.Delete(ctx, svc); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	end := service(c.SetLabel(ctx, before, "end", "1"))
	if _, err := r.Wait(ctx, func(o testenv.Observation) bool { return o.ResourceVersion == end.ResourceVersion }); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitFor(ctx, revisionOf(t, end)); err != nil {
		t.Fatal(err)
	}
	if got, want := h.Seen(), revisionOf(t, end); got < want {
		t.Errorf("seen = %d, want at least %d", got, want)
	}
	var want []string
	for _, o := range r.Observations() {
		want = append(want, fmt.Sprintf("%s %s %s deleted=%t", o.ResourceVersion, o.Name, o.UID, o.Type == watch.Deleted))
	}
	if got := lines(h.Changes()); !slices.Equal(got, want) {
		t.Errorf("history:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	last, replicas := int64(0), map[int64]int{}
	for _, change := range h.Changes() {
		version := must[int64](t)(strconv.ParseInt(change.ResourceVersion, 10, 64))
		if version <= last {
			t.Errorf("version %d comes after %d", version, last)
		}
		last = version
		stored := change.Object.GetResourceVersion()
		if (stored == change.ResourceVersion) == change.Deleted {
			t.Errorf("%s %s, deleted=%t: its object has version %s", change.Name, change.ResourceVersion, change.Deleted, stored)
		}
		if change.Object.GetUID() != change.UID || change.Object.GetName() != change.Name || change.Object.GetKind() != change.Kind {
			t.Errorf("%s %s: it holds another object", change.Kind, change.Name)
		}
		if change.Kind == "Revision" && !change.Deleted {
			status, _ := change.Object.Object["status"].(map[string]any)
			if count, ok := status["actualReplicas"].(int64); ok {
				replicas[count]++
			}
		}
	}
	if got, want := replicas[3], 8*3; got != want {
		t.Errorf("Revisions with 3 replicas = %d, want %d", got, want)
	}

	if err := errors.Join(c.KillAPIServer(), c.StartAPIServer(ctx)); err != nil {
		t.Fatal(err)
	}
	h2 := history(t, c)
	unmanaged := service(c.SetLabel(ctx, end, "flyte.org/app-managed", ""))
	if err := c.Delete(ctx, unmanaged); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitFor(ctx, revisionOf(t, unmanaged)+1); err != nil {
		t.Fatal(err)
	}
	all := lines(h.Changes())
	if got, want := all[len(all)-2], fmt.Sprintf("%s %s %s deleted=false", unmanaged.ResourceVersion, unmanaged.Name, unmanaged.UID); got != want {
		t.Errorf("after the API server's death: %s, want %s", got, want)
	}
	if got := all[len(all)-1]; !strings.HasSuffix(got, "deleted=true") {
		t.Errorf("last change: %s, want a deletion", got)
	}
	if err := h2.WaitFor(ctx, h.Seen()); err != nil {
		t.Fatal(err)
	}
	if got, want := lines(h2.Changes()), all[len(all)-3:]; !slices.Equal(got, want) {
		t.Errorf("a history begun later: %q, want %q", got, want)
	}
	for _, h := range []*testenv.History{h, h2} {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestCompact(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, testenv.Options{})
	h := history(t, c)
	svc := must[*servingv1.Service](t)(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "n"}))
	if _, err := c.Rollout(ctx, svc, "", 1); err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	services := dyn.Resource(servingv1.SchemeGroupVersion.WithResource("services")).Namespace(testenv.DefaultNamespace)
	exact := metav1.ListOptions{ResourceVersion: svc.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	restart := func() {
		t.Helper()
		if err := errors.Join(c.KillAPIServer(), c.StartAPIServer(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	restart() // what it answers next comes from etcd
	if _, err := services.List(ctx, exact); err != nil {
		t.Fatalf("list at version %s before it was compacted: %v", svc.ResourceVersion, err)
	}
	if err := c.Compact(ctx, h); err != nil {
		t.Fatal(err)
	}
	if got := h.Changes(); len(got) == 0 {
		t.Error("compacted before the history had noted anything")
	}
	restart()
	if _, err := services.List(ctx, exact); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("list at version %s: got %v, want 410", svc.ResourceVersion, err)
	}
	w, err := services.Watch(ctx, metav1.ListOptions{ResourceVersion: svc.ResourceVersion})
	if err == nil {
		defer w.Stop()
		select {
		case event := <-w.ResultChan():
			err = apierrors.FromObject(event.Object)
		case <-time.After(soon):
			t.Fatal("a watch from a compacted version shows nothing")
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from version %s: got %v, want 410", svc.ResourceVersion, err)
	}
	if err := c.Compact(ctx, nil); err != nil {
		t.Error(err)
	}
	if err := h.Stop(); err != nil {
		t.Error(err)
	}
}

func TestEtcdRestore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, testenv.Options{})
	service := must[*servingv1.Service](t)
	kept := service(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "kept"}))
	host := c.Config.Host
	h := history(t, c)
	saved, err := c.SaveEtcd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Stop(); err == nil {
		t.Error("the history did not tell that etcd was gone")
	}
	for range 2 {
		lost := service(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "lost"}))
		changed := kept
		for i := range 200 { // a starting API server writes, too, but less
			changed = service(c.SetLabel(ctx, changed, "changed", strconv.Itoa(i)))
		}
		if err := c.RestoreEtcd(ctx, saved); err != nil {
			t.Fatal(err)
		}
		if got, want := c.Config.Host, host; got != want {
			t.Errorf("address = %s, want %s", got, want)
		}
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(lost), lost); !apierrors.IsNotFound(err) {
			t.Errorf("an object from after the copy: got %v, want not found", err)
		}
		list := &servingv1.ServiceList{}
		if err := c.Client.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].ResourceVersion != kept.ResourceVersion || list.Items[0].UID != kept.UID {
			t.Errorf("after the restore: %v, want %s at %s alone", list.Items, kept.Name, kept.ResourceVersion)
		}
		if got, limit := must[int64](t)(strconv.ParseInt(list.ResourceVersion, 10, 64)), revisionOf(t, changed); got >= limit {
			t.Errorf("version of the list = %d, want it below %d", got, limit)
		}
	}
}
