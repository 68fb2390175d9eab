package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/watch"
)

const (
	// reachWait is how long the source may take to show what the API server has.
	reachWait = 2 * time.Second
	// maxBehind bounds the suspects of one kind and namespace: one is enough to have the informer list again.
	maxBehind = 100
)

// sourceAudit compares what the informers showed with the API server. Its subjects are objects, as
// "Service flyte/x".
type sourceAudit struct {
	bridge *Bridge
	kube   *kube
	wait   time.Duration // reachWait
}

func newSourceAudit(b *Bridge, k *kube) *sourceAudit {
	return &sourceAudit{bridge: b, kube: k, wait: reachWait}
}

func (a *sourceAudit) Active() bool { return a.bridge.Synced() == nil }

// objectOf is the object that a subject names.
func objectOf(subject string) (kind string, key types.NamespacedName) {
	kind, name, _ := strings.Cut(subject, " ")
	key.Namespace, key.Name, _ = strings.Cut(name, "/")
	return kind, key
}

// informed is the namespace of the informer that shows the objects of a namespace.
func (a *sourceAudit) informed(namespace string) string {
	if slices.Contains(a.kube.namespaces, metav1.NamespaceAll) {
		return metav1.NamespaceAll
	}
	return namespace
}

// Screen goes on where the API server refuses a list: one namespace may be forbidden.
func (a *sourceAudit) Screen(ctx context.Context, pace *audit.Pace) ([]string, error) {
	var suspects []string
	var refused error
	for _, ns := range a.kube.namespaces {
		for _, kind := range []string{kindRevision, kindService} {
			found, err := a.screen(ctx, kind, ns, pace)
			if err != nil && !isAnswer(err) {
				return nil, err
			}
			refused = errors.Join(refused, err)
			suspects = append(suspects, found...)
		}
	}
	return suspects, refused
}

// isAnswer reports whether an error is what the API server answered.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// screen lists the objects of a kind and a namespace, page by page, and returns those that the source
// does not show as new as the list.
func (a *sourceAudit) screen(ctx context.Context, kind, ns string, pace *audit.Pace) ([]string, error) {
	src := a.bridge.source
	seen := map[types.NamespacedName]struct{}{}
	behind := map[types.NamespacedName]listed{}
	version := ""
	for next := ""; ; {
		p, err := a.kube.page(ctx, kind, ns, "", next)
		if err != nil {
			return nil, err
		}
		src.mu.Lock()
		for key, item := range p.items {
			seen[key] = struct{}{}
			if !src.shows(kind, key, item, p.version) {
				behind[key] = item
			}
		}
		src.mu.Unlock()
		version, next = p.version, p.next
		if next == "" {
			break
		}
		if err := pace.Step(ctx); err != nil {
			return nil, err
		}
	}
	return a.still(ctx, kind, ns, version, seen, behind)
}

// still returns what the source does not show after a short wait either.
func (a *sourceAudit) still(ctx context.Context, kind, ns, version string, seen map[types.NamespacedName]struct{},
	behind map[types.NamespacedName]listed,
) ([]string, error) {
	src := a.bridge.source
	covers := listing{kind: kind, namespace: ns}.covers
	limit := time.NewTimer(a.wait)
	defer limit.Stop()
	for over := false; ; {
		src.mu.Lock()
		for key, item := range behind {
			if src.shows(kind, key, item, version) {
				delete(behind, key)
			}
		}
		gone := 0
		var suspects []string
		for key, shown := range src.versions(kind) {
			if _, ok := seen[key]; !ok && covers(key.Namespace) && order(shown, version) <= 0 {
				if gone++; gone <= maxBehind {
					suspects = append(suspects, kind+" "+key.String())
				}
			}
		}
		changed := src.nextChange()
		src.mu.Unlock()
		if len(behind) == 0 && gone == 0 {
			return nil, nil
		}
		if over {
			for key := range behind {
				if len(suspects) == 2*maxBehind {
					break
				}
				suspects = append(suspects, kind+" "+key.String())
			}
			return suspects, nil
		}
		// Not at each change: under load there are many.
		select {
		case <-limit.C:
			over = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
			pause := time.NewTimer(a.wait / 10)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				return nil, context.Cause(ctx)
			}
		}
	}
}

// shows reports whether the source shows an object as new as a list at version has it. mu must be held.
func (s *source) shows(kind string, key types.NamespacedName, item listed, version string) bool {
	uid, shown, ok := s.known(kind, key)
	if !ok {
		return false // it may have been deleted since
	}
	if uid == item.UID {
		return order(shown, item.ResourceVersion) >= 0
	}
	return order(shown, version) > 0
}

// lacks reports whether the source shows nothing that a list at version, without the object, would
// have. mu must be held.
func (s *source) lacks(kind string, key types.NamespacedName, version string) bool {
	_, shown, ok := s.known(kind, key)
	return !ok || order(shown, version) > 0
}

// passed is the highest version of a kind that a watch of the namespace has shown. mu must be held.
func (s *source) passed(kind, namespace string) string {
	if kind == kindRevision {
		return s.shownRevisions[namespace]
	}
	return s.shown[namespace]
}

// Look reads each object from the API server and gives the source a short time to show it. An
// informer that lists again, or has no watch, is about to show what it lacks.
func (a *sourceAudit) Look(ctx context.Context, names []string) (audit.Looked, error) {
	looked := audit.Looked{Unsettled: map[string]bool{}}
	wants := map[string]want{}
	for _, name := range names {
		kind, key := objectOf(name)
		src := a.bridge.source
		src.mu.Lock()
		known := later(src.passed(kind, key.Namespace), src.lists[kind])
		src.mu.Unlock()
		if a.disturbed(kind, key.Namespace) {
			looked.Unsettled[name] = true
			continue
		}
		p, err := a.kube.page(ctx, kind, key.Namespace, key.Name, "")
		if isAnswer(err) {
			looked.Unsettled[name] = true
			continue
		}
		if err != nil {
			return looked, err
		}
		if known != "" && order(p.version, known) < 0 {
			looked.Unsettled[name] = true // the answer is older than what was shown, by a watch or a list
			continue
		}
		w := want{kind: kind, key: key, version: p.version}
		if item, ok := p.items[key]; ok {
			w.item = &item
		}
		wants[name] = w
	}
	if err := a.reach(ctx, wants); err != nil {
		return looked, err
	}
	for name, w := range wants {
		if a.disturbed(w.kind, w.key.Namespace) {
			looked.Unsettled[name] = true
			continue
		}
		looked.Differences = append(looked.Differences, a.difference(name, w))
	}
	return looked, nil
}

// want is what the API server has of an object.
type want struct {
	kind    string
	key     types.NamespacedName
	item    *listed // nil: it has none
	version string  // of the list
}

// reach waits until the source shows what is wanted, for a short time, and takes out what it shows.
func (a *sourceAudit) reach(ctx context.Context, wants map[string]want) error {
	src := a.bridge.source
	limit := time.NewTimer(a.wait)
	defer limit.Stop()
	for {
		src.mu.Lock()
		for name, w := range wants {
			if w.item != nil && src.shows(w.kind, w.key, *w.item, w.version) || w.item == nil && src.lacks(w.kind, w.key, w.version) {
				delete(wants, name)
			}
		}
		changed := src.nextChange()
		src.mu.Unlock()
		if len(wants) == 0 {
			return nil
		}
		select {
		case <-limit.C:
			return nil
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// difference is that of an object which the source does not show as the API server has it. Two looks
// agree if the source showed the same of it, and if its watch stood still or is past the change: what
// a watch shows is in order.
func (a *sourceAudit) difference(name string, w want) audit.Difference {
	src := a.bridge.source
	src.mu.Lock()
	uid, shown, ok := src.known(w.kind, w.key)
	passed := src.passed(w.kind, w.key.Namespace)
	src.mu.Unlock()
	// An object that is gone was deleted before the list.
	has, shows, changed := "does not have it", "do not show it", w.version
	if w.item != nil {
		has, changed = fmt.Sprintf("has version %s of uid %s", w.item.ResourceVersion, w.item.UID), w.item.ResourceVersion
	}
	if ok {
		shows = fmt.Sprintf("show version %s of uid %s", shown, uid)
	}
	d := audit.Difference{
		Subject: name, Field: "object", Name: name, Kind: string(DifferenceSourceBehind), Side: string(SideSource),
		Detail: fmt.Sprintf("the cluster %s, the informers %s", has, shows),
	}
	d.Same = shows
	if passed == "" || order(changed, passed) > 0 {
		d.Same += ", the watch at " + passed
	}
	return d
}

// Repair has the informers list again.
func (a *sourceAudit) Repair(_ context.Context, differences []audit.Difference) error {
	type informer struct{ kind, namespace string }
	again := map[informer]bool{}
	for _, d := range differences {
		kind, key := objectOf(d.Subject)
		again[informer{kind, a.informed(key.Namespace)}] = true
	}
	for i := range again {
		a.kube.relist(i.kind, i.namespace, watch.CauseAudit)
	}
	return nil
}

// disturbed reports whether the informer of a kind and a namespace may be about to show what it lacks:
// it lists, or has no watch.
func (a *sourceAudit) disturbed(kind, namespace string) bool {
	ns := a.informed(namespace)
	return a.bridge.reach.disturbs(kind, ns) || a.kube.watches.Listing(kind, ns)
}
