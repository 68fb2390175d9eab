package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// quietTime is how long there must be no new message at the end.
const quietTime = 3 * time.Second

// settled waits until everything that has happened is told, written and read.
// Nobody may be changing apps. The error says what is missing.
func (w *world) settled(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	revision, err := w.revision(ctx)
	if err != nil {
		return err
	}
	if err := w.history.WaitFor(ctx, revision); err != nil {
		return fmt.Errorf("read etcd up to revision %d: %w", revision, err)
	}
	if w.podLog != nil {
		if err := w.podLog.WaitFor(ctx, revision); err != nil {
			return fmt.Errorf("read the pods in etcd up to revision %d: %w", revision, err)
		}
	}
	truth := truthAt(w.changes(), math.MaxInt64)
	return poll(ctx, patience, func(ctx context.Context) string { return w.unsettled(ctx, truth) })
}

// unsettled names one thing that is not settled, "" if all is.
func (w *world) unsettled(ctx context.Context, truth map[string]appState) string {
	leader, why := w.leading(ctx)
	if leader == nil {
		return why
	}
	for _, b := range w.bridges {
		if s := b.look(ctx); !s.ready {
			return fmt.Sprintf("bridge %s is not ready: %s", b.name, s.why)
		}
	}
	s := leader.look(ctx)
	if n := s.metrics[metricPending]; n > 0 {
		return fmt.Sprintf("%.0f changes wait for the stream", n)
	}
	if why := w.events.atEnd(ctx); why != "" {
		return why
	}
	if late := behind(truth, truth, w.events.apps()); len(late) > 0 {
		return fmt.Sprintf("the newest event of %s is not the cluster's state", few(late))
	}
	if n := s.metrics[metricLag]; n > 0 {
		return fmt.Sprintf("the bucket is %.0f events behind", n)
	}
	entries, err := w.events.entries(ctx)
	if err != nil {
		return err.Error()
	}
	if late := bucketBehind(entries, w.events.apps()); len(late) > 0 {
		return fmt.Sprintf("the bucket does not show the newest event of %s", few(late))
	}
	return ""
}

// bucketBehind lists the apps whose newest event is not what the bucket shows.
func bucketBehind(entries []audit.Message, events map[string]appEvent) []string {
	shown := map[string]string{}
	for _, e := range entries {
		if key, err := subjects.ParseBucketSubject(subjects.DefaultBucket, e.Subject); err == nil {
			shown[key] = e.Header.Get(subjects.HeaderEventSequence)
		}
	}
	var late []string
	for _, key := range slices.Sorted(maps.Keys(events)) {
		if shown[key] != strconv.FormatUint(events[key].sequence, 10) {
			late = append(late, key)
		}
	}
	return late
}

// quiet waits until no message has come for a while.
func (w *world) quiet(ctx context.Context, patience time.Duration) error {
	return poll(ctx, patience, func(context.Context) string {
		n, at := w.events.count()
		if since := time.Since(at); since < quietTime {
			return fmt.Sprintf("messages still come in, the last of %d %s ago", n, since.Round(time.Millisecond))
		}
		return ""
	})
}

// revision is the revision that etcd is at.
func (w *world) revision(ctx context.Context) (int64, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(servingv1.SchemeGroupVersion.WithKind("ServiceList"))
	for {
		err := w.cluster.Client.List(ctx, list, client.InNamespace(testenv.DefaultNamespace), client.Limit(1))
		if err == nil {
			return strconv.ParseInt(list.GetResourceVersion(), 10, 64)
		}
		if testenv.Pause(ctx, sampleInterval) != nil {
			return 0, errors.Join(errors.New("ask for etcd's revision"), err)
		}
	}
}
