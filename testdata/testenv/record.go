package testenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// Observation is one version of a Knative Service that the API server showed.
type Observation struct {
	// Type is Added, Modified or Deleted; for what already existed, Added.
	Type            watch.EventType
	Namespace, Name string
	UID             types.UID
	// ResourceVersion of the object; on a Deleted, the version of the deletion
	// (after a gap: of the last state seen).
	ResourceVersion string
	Object          *unstructured.Unstructured
	// Gap marks what was found by listing again, after the API server had
	// forgotten what happened since the watch broke off: a net difference.
	Gap bool
}

// Recorder notes every version of the managed Knative Services of a namespace,
// in the order of the API server, by a plain list and watch. Nothing of it is
// shared with informers, so it can stand as the truth beside one.
type Recorder struct {
	client dynamic.ResourceInterface
	cancel context.CancelFunc
	done   chan struct{} // closed when the recording has ended

	mu      sync.Mutex
	seen    []Observation
	err     error
	changed chan struct{} // closed and replaced with every observation

	// Of the recording goroutine alone.
	last map[types.NamespacedName]*unstructured.Unstructured
}

// Record lists consistently, notes what exists, and watches on from there until
// the context ends or Stop is called.
func (c *Cluster) Record(ctx context.Context, namespace string) (*Recorder, error) {
	cfg := *c.Config
	cfg.QPS = -1
	dyn, err := dynamic.NewForConfig(&cfg)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Recorder{
		client:  dyn.Resource(servingv1.SchemeGroupVersion.WithResource("services")).Namespace(namespace),
		cancel:  cancel,
		done:    make(chan struct{}),
		changed: make(chan struct{}),
		last:    map[types.NamespacedName]*unstructured.Unstructured{},
	}
	version, err := r.list(ctx, false)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("record: %w", err)
	}
	go r.run(ctx, version)
	return r, nil
}

// Stop ends the recording. The error is that of a recording that could not go on.
func (r *Recorder) Stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// Observations are all that were noted so far, oldest first.
func (r *Recorder) Observations() []Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// Wait returns when an observation, past or to come, satisfies the condition.
func (r *Recorder) Wait(ctx context.Context, condition func(Observation) bool) (Observation, error) {
	next := 0
	for {
		r.mu.Lock()
		seen, changed := r.seen[next:], r.changed
		r.mu.Unlock()
		if i := slices.IndexFunc(seen, condition); i >= 0 {
			return seen[i], nil
		}
		next += len(seen)
		select {
		case <-changed:
		case <-r.done:
			return Observation{}, errors.Join(errors.New("the recording has ended"), r.err)
		case <-ctx.Done():
			return Observation{}, ctx.Err()
		}
	}
}

func (r *Recorder) run(ctx context.Context, version string) {
	defer close(r.done)
	for ctx.Err() == nil {
		next, err := r.watch(ctx, version)
		switch {
		case apierrors.IsGone(err) || apierrors.IsResourceExpired(err):
			next, err = r.list(ctx, true)
		case err == nil && next == version:
			err = pause(ctx)
		}
		if next != "" {
			version = next
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			r.err = fmt.Errorf("record: %w", err)
			return
		}
		// Anything else is a server on its way down or up.
		if pause(ctx) != nil {
			return
		}
	}
}

// pause keeps a loop that gets nowhere from spinning.
func pause(ctx context.Context) error { return Pause(ctx, 50*time.Millisecond) }

// Pause waits, or until the context ends.
func Pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch notes what the API server sends after the version, and returns the last
// version noted.
func (r *Recorder) watch(ctx context.Context, version string) (string, error) {
	w, err := r.client.Watch(ctx, metav1.ListOptions{
		LabelSelector: Managed, ResourceVersion: version, AllowWatchBookmarks: true,
	})
	if err != nil {
		return version, err
	}
	defer w.Stop()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return version, nil
			}
			obj, isObject := event.Object.(*unstructured.Unstructured)
			if event.Type == watch.Error || !isObject {
				return version, apierrors.FromObject(event.Object)
			}
			version = obj.GetResourceVersion()
			if event.Type != watch.Bookmark {
				r.note(event.Type, obj, false)
			}
		case <-ctx.Done():
			return version, ctx.Err()
		}
	}
}

// list notes what differs from what was noted before, and returns the version
// of the list. No version asked for: the list is as new as etcd.
func (r *Recorder) list(ctx context.Context, gap bool) (string, error) {
	list, err := r.client.List(ctx, metav1.ListOptions{LabelSelector: Managed})
	if err != nil {
		return "", err
	}
	present := map[types.NamespacedName]*unstructured.Unstructured{}
	for i := range list.Items {
		present[keyOf(&list.Items[i])] = &list.Items[i]
	}
	for key, old := range r.last {
		if now, ok := present[key]; !ok || now.GetUID() != old.GetUID() {
			r.note(watch.Deleted, old, gap)
		}
	}
	for i := range list.Items {
		obj := &list.Items[i]
		switch old, known := r.last[keyOf(obj)]; {
		case !known:
			r.note(watch.Added, obj, gap)
		case old.GetResourceVersion() != obj.GetResourceVersion():
			r.note(watch.Modified, obj, gap)
		}
	}
	return list.GetResourceVersion(), nil
}

func (r *Recorder) note(kind watch.EventType, obj *unstructured.Unstructured, gap bool) {
	if kind == watch.Deleted {
		delete(r.last, keyOf(obj))
	} else {
		r.last[keyOf(obj)] = obj
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, Observation{
		Type: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(),
		ResourceVersion: obj.GetResourceVersion(), Object: obj, Gap: gap,
	})
	close(r.changed)
	r.changed = make(chan struct{})
}

func keyOf(obj *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
