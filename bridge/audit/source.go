package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/watch"
)

const (
	// ReachWait is how long the source may take to have what the API server has.
	ReachWait = 2 * time.Second
	// maxBehind bounds the suspects of one kind and namespace: one is enough for a relist.
	maxBehind = 100
)

// SourcePart compares the informers with the API server. Its subjects are as "Service flyte/x".
type SourcePart struct {
	Source *watch.Shown
	Kube   *watch.Cluster
	Synced func() bool // reports whether the informers have synced
	// Disturbed reports whether an informer is listing or has no watch, so it may be behind.
	Disturbed func(kind, namespace string) bool
	Wait      time.Duration // ReachWait
}

// Active reports whether the informers have synced.
func (a *SourcePart) Active() bool { return a.Synced() }

func objectOf(subject string) (kind string, key types.NamespacedName) {
	kind, name, _ := strings.Cut(subject, " ")
	key.Namespace, key.Name, _ = strings.Cut(name, "/")
	return kind, key
}

// informed returns the namespace of the informer of a namespace's objects.
func (a *SourcePart) informed(namespace string) string {
	if slices.Contains(a.Kube.Namespaces, metav1.NamespaceAll) {
		return metav1.NamespaceAll
	}
	return namespace
}

// Screen goes on where the API server refuses a list: one namespace may be forbidden.
func (a *SourcePart) Screen(ctx context.Context, pace *Pace) ([]string, error) {
	var suspects []string
	var refused error
	for _, ns := range a.Kube.Namespaces {
		for _, kind := range a.Kube.Kinds() {
			found, err := a.screen(ctx, kind, ns, pace)
			if err != nil && !kubeapi.Responded(err) {
				return nil, err
			}
			refused = errors.Join(refused, err)
			suspects = append(suspects, found...)
		}
	}
	return suspects, refused
}

// screen lists objects, and returns those that the source still lacks after a short wait.
func (a *SourcePart) screen(ctx context.Context, kind, ns string, pace *Pace) ([]string, error) {
	seen := map[types.NamespacedName]struct{}{}
	l := watch.Listing{Kind: kind, Namespace: ns, Items: map[types.NamespacedName]watch.Listed{}}
	if err := a.Kube.Pages(ctx, kind, ns, func(page watch.Listing) error {
		for key := range page.Items {
			seen[key] = struct{}{}
		}
		maps.Copy(l.Items, a.Source.Outdated(page))
		l.Version = page.Version
		if page.More {
			return pace.Step(ctx)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	inList := func(key types.NamespacedName) bool { _, ok := seen[key]; return ok }
	var undeleted []types.NamespacedName
	if err := a.await(ctx, func() bool {
		l.Items = a.Source.Outdated(l)
		undeleted = a.Source.Undeleted(l, inList, maxBehind)
		return len(l.Items) == 0 && len(undeleted) == 0
	}); err != nil {
		return nil, err
	}
	outdated := slices.Collect(maps.Keys(l.Items))
	var suspects []string
	for _, key := range slices.Concat(undeleted, outdated[:min(len(outdated), maxBehind)]) {
		suspects = append(suspects, l.Kind+" "+key.String())
	}
	return suspects, nil
}

// await calls done as the source changes until it returns true, for Wait at most.
func (a *SourcePart) await(ctx context.Context, done func() bool) error {
	limit := time.After(a.Wait)
	for over := false; ; {
		changed := a.Source.Changes()
		if done() || over {
			return nil
		}
		// Not at each change: under load there are many.
		select {
		case <-limit:
			over = true
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
			if err := retry.Wait(ctx, a.Wait/10); err != nil {
				return err
			}
		}
	}
}

// Look reads each object from the API server and gives the source a short time to receive it. An
// informer that lists again, or has no watch, is about to receive what it lacks.
func (a *SourcePart) Look(ctx context.Context, names []string) (Looked, error) {
	looked := Looked{Changing: map[string]bool{}}
	wants := map[string]want{}
	for _, name := range names {
		kind, key := objectOf(name)
		before := a.Source.Observed(kind, key)
		known := app.NewerVersion(before.Watched, before.Listed)
		if a.Disturbed(kind, a.informed(key.Namespace)) {
			looked.Changing[name] = true
			continue
		}
		p, err := a.Kube.Object(ctx, kind, key)
		switch {
		case kubeapi.Responded(err), err == nil && known != "" && app.CompareVersions(p.Version, known) < 0:
			looked.Changing[name] = true // refused, or older than what a watch or a list returned
			continue
		case err != nil:
			return looked, err
		}
		w := want{kind: kind, key: key, version: p.Version}
		if item, ok := p.Items[key]; ok {
			w.item = &item
		}
		wants[name] = w
	}
	if err := a.await(ctx, func() bool {
		maps.DeleteFunc(wants, func(_ string, w want) bool { return a.Source.Observed(w.kind, w.key).Agrees(w.item, w.version) })
		return len(wants) == 0
	}); err != nil {
		return looked, err
	}
	for name, w := range wants {
		if a.Disturbed(w.kind, a.informed(w.key.Namespace)) {
			looked.Changing[name] = true
			continue
		}
		looked.Findings = append(looked.Findings, a.finding(name, w))
	}
	return looked, nil
}

// want is what the API server has of an object.
type want struct {
	kind    string
	key     types.NamespacedName
	item    *watch.Listed // nil: it has none
	version string        // of the list
}

// finding is the finding of an object that the source has in another version than the API server.
// Two looks agree if the source has the same, and its watch did not move or is past the change.
func (a *SourcePart) finding(name string, w want) Difference {
	o := a.Source.Observed(w.kind, w.key)
	// An object that is gone was deleted before the list.
	has, shows, changed := "does not have it", "do not show it", w.version
	if w.item != nil {
		has, changed = fmt.Sprintf("has version %s of uid %s", w.item.ResourceVersion, w.item.UID), w.item.ResourceVersion
	}
	if o.Exists {
		shows = fmt.Sprintf("show version %s of uid %s", o.Version, o.UID)
	}
	d := whole(DifferenceSourceBehind, plan.SideSource, "the cluster %s, the informers %s", has, shows)
	d.Key, d.Same = name, shows
	if o.Watched == "" || app.CompareVersions(changed, o.Watched) > 0 {
		d.Same += ", the watch at " + o.Watched
	}
	return d
}

// Repair has the informers list again.
func (a *SourcePart) Repair(_ context.Context, findings []Difference) error {
	type informer struct{ kind, namespace string }
	again := map[informer]bool{}
	for _, d := range findings {
		kind, key := objectOf(d.Subject())
		again[informer{kind, a.informed(key.Namespace)}] = true
	}
	for i := range again {
		a.Kube.Watches.Relist(i.kind, i.namespace, watch.CauseAudit)
	}
	return nil
}
