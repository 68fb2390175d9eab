package main

import (
	"context"
	"net/http"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/scaling"
	"knative.dev/serving/pkg/reconciler/autoscaling/kpa"
)

// load stands in for what Knative's autoscaler measures at the pods of each Revision, which have no
// address here. Its reconciler makes the same of it. Without a word from outside, a Revision that a
// Route refers to has the load of one pod, and one that begins without pods has none.
type load struct {
	mu       sync.Mutex
	deciders map[types.NamespacedName]*scaling.Decider
	pods     map[types.NamespacedName]int32
	changed  func(types.NamespacedName)
}

func newLoad() *load {
	return &load{deciders: map[types.NamespacedName]*scaling.Decider{}, pods: map[types.NamespacedName]int32{}}
}

func (l *load) newAutoscaler(ctx context.Context, configs configmap.Watcher) *controller.Impl {
	return kpa.NewController(ctx, configs, l)
}

// Get returns the decision about a Revision.
func (l *load) Get(_ context.Context, namespace, name string) (*scaling.Decider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	decider := l.deciders[key]
	if decider == nil {
		return nil, apierrors.NewNotFound(autoscalingv1alpha1.Resource("deciders"), key.String())
	}
	return l.decide(key, decider), nil
}

// Create notes a Revision.
func (l *load) Create(ctx context.Context, decider *scaling.Decider) (*scaling.Decider, error) {
	return l.Update(ctx, decider)
}

// Update notes what is known of a Revision.
func (l *load) Update(_ context.Context, decider *scaling.Decider) (*scaling.Decider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := types.NamespacedName{Namespace: decider.Namespace, Name: decider.Name}
	l.deciders[key] = decider
	return l.decide(key, decider), nil
}

// Delete forgets a Revision.
func (l *load) Delete(_ context.Context, namespace, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	delete(l.deciders, key)
	delete(l.pods, key)
}

// Watch has the autoscaler look at a Revision whose load has changed.
func (l *load) Watch(changed func(types.NamespacedName)) { l.changed = changed }

func (l *load) decide(key types.NamespacedName, decider *scaling.Decider) *scaling.Decider {
	decided := *decider
	pods, is := l.pods[key]
	switch {
	case is:
	case decider.Spec.Reachable && decider.Spec.InitialScale > 0:
		pods = 1
	}
	decided.Status.DesiredScale = pods
	// The sign is all that counts: pods that want the activator in front of them have no spare capacity.
	decided.Status.ExcessBurstCapacity = int32(min(0, decider.Spec.TargetBurstCapacity))
	return &decided
}

// ServeHTTP sets how many pods the load of a Revision is enough for.
func (l *load) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pods, err := strconv.ParseInt(r.PathValue("pods"), 10, 32)
	if err != nil || pods < 0 {
		http.Error(w, "not a number of pods: "+r.PathValue("pods"), http.StatusBadRequest)
		return
	}
	key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("revision")}
	l.mu.Lock()
	l.pods[key] = int32(pods)
	l.mu.Unlock()
	l.changed(key)
}
