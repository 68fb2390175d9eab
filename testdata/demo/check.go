package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The bucket follows the stream in milliseconds.
const bucketPoll = 50 * time.Millisecond

// check compares what was caused with what arrived, and the bucket with the
// cluster, and prints both sides.
func check(ctx context.Context, t *tour, out *screen) error {
	out.heading("Checking what was seen")
	failures, err := t.stage.checkEvents(ctx, t, out)
	if err != nil {
		return err
	}
	fromBucket, err := t.checkBucket(ctx, out)
	if err != nil {
		return err
	}
	failures = append(failures, fromBucket...)
	if len(failures) > 0 {
		return errors.New("what was seen is not what was caused:\n  " + strings.Join(failures, "\n  "))
	}
	out.note("All as expected.")
	return nil
}

// checkEvents looks at every app's events: as many as caused, of that kind,
// status, replicas and image, each joined to the one before.
func (p *played) checkEvents(_ context.Context, t *tour, out *screen) (failures []string, err error) {
	rows := [][]string{{"app", "event", "expected", "seen", ""}}
	expected := 0
	for _, app := range sortedNames(t.wants) {
		wants, seen := t.wants[app], t.events.of(t.ids[app])
		expected += len(wants)
		fail := func(i int, text string) {
			failures = append(failures, fmt.Sprintf("%s, event %d: %s", app, i+1, text))
		}
		image := imageOf(t.firstApp(app))
		for i := range max(len(wants), len(seen)) {
			row := []string{app, strconv.Itoa(i + 1), "-", "-", "ok"}
			if i < len(wants) {
				row[2] = wants[i].String()
			}
			if i < len(seen) {
				row[3] = seenAs(seen[i]).String()
			}
			if row[2] != row[3] {
				row[4] = "DIFFERS"
				fail(i, "expected "+row[2]+", seen "+row[3])
			}
			rows = append(rows, row)
			if i >= len(wants) || i >= len(seen) {
				continue
			}
			if wants[i].image != "" {
				image = wants[i].image
			}
			if wants[i].kind == subjects.Created {
				image = imageOf(t.firstApp(app))
			}
			if got := imageOf(seen[i].app); got != image {
				fail(i, "expected image "+image+", seen "+got)
			}
			for _, broken := range joints(seen, i) {
				fail(i, broken)
			}
		}
	}
	if total := len(t.events.all()); total != expected {
		failures = append(failures, fmt.Sprintf("expected %d events in all, seen %d", expected, total))
	}
	out.table(rows)
	return failures, nil
}

// seenAs is an event in the terms of the story.
func seenAs(e event) want {
	return want{kind: e.kind, status: statusOf(e.app), replicas: e.app.GetStatus().GetCurrentReplicas()}
}

// joints tells what does not join an event to the app's event before.
func joints(seen []event, i int) (broken []string) {
	e := seen[i]
	previous := ""
	if i > 0 {
		before := seen[i-1]
		previous = strconv.FormatUint(before.sequence, 10)
		if e.kind == subjects.Updated && !proto.Equal(e.old, before.app) {
			broken = append(broken, "old_app is not the app of the event before")
		}
		uid, newUID := before.header.Get(subjects.HeaderUID), e.header.Get(subjects.HeaderUID)
		if again := e.kind == subjects.Created; (uid != newUID) != again {
			broken = append(broken, "uid "+newUID+" after "+uid)
		}
	}
	if got := e.header.Get(subjects.HeaderPreviousSequence); got != previous {
		broken = append(broken, fmt.Sprintf("%s %q, expected %q", subjects.HeaderPreviousSequence, got, previous))
	}
	for _, header := range []string{
		subjects.HeaderSynthesized, subjects.HeaderMergedUpdates, subjects.HeaderFinalStateUnknown, subjects.HeaderTruncated,
	} {
		if value := e.header.Get(header); value != "" {
			broken = append(broken, header+": "+value)
		}
	}
	return broken
}

// firstApp is the app as its sample describes it.
func (t *tour) firstApp(name string) *appv1.App {
	app, err := testenv.AppOf(t.samples[name])
	if err != nil {
		return nil // newTour has read it before
	}
	return &appv1.App{Spec: app.Spec}
}

// checkBucket compares the bucket, read by its client, with the cluster.
func (t *tour) checkBucket(ctx context.Context, out *screen) (failures []string, err error) {
	cluster, err := t.clusterApps(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	bucket, err := t.bucketApps(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the bucket: %w", err)
	}
	keys := sortedNames(cluster)
	for key := range bucket {
		if cluster[key] == nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	rows := [][]string{{"key", "", "cluster", "bucket", ""}}
	for _, key := range keys {
		row := []string{key, "", summary(cluster[key]), summary(bucket[key]), "ok"}
		if !proto.Equal(cluster[key], bucket[key]) {
			row[4] = "DIFFERS"
			failures = append(failures, fmt.Sprintf("%s: cluster has %v, bucket has %v", key, cluster[key], bucket[key]))
		}
		rows = append(rows, row)
	}
	if got, want := len(cluster), 3; got != want {
		failures = append(failures, fmt.Sprintf("%d apps in the cluster, expected %d", got, want))
	}
	out.table(rows)
	return failures, nil
}

func summary(app *appv1.App) string {
	if app == nil {
		return "-"
	}
	return fmt.Sprintf("%s %d %s", statusOf(app), app.GetStatus().GetCurrentReplicas(), shortImage(app))
}

// clusterApps reads the cluster anew and converts what it finds.
func (t *tour) clusterApps(ctx context.Context) (map[string]*appv1.App, error) {
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		return nil, err
	}
	reader, err := client.New(t.cluster.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	list := &kservice.ServiceList{}
	if err := reader.List(ctx, list, client.InNamespace(testenv.DefaultNamespace)); err != nil {
		return nil, err
	}
	apps := map[string]*appv1.App{}
	for i := range list.Items {
		svc := &list.Items[i]
		var rev *kservice.Revision
		if name := svc.Status.LatestReadyRevisionName; name != "" {
			rev = &kservice.Revision{}
			err := reader.Get(ctx, client.ObjectKey{Namespace: svc.Namespace, Name: name}, rev)
			if client.IgnoreNotFound(err) != nil {
				return nil, err
			}
			if err != nil {
				rev = nil
			}
		}
		app, err := kservice.Convert(svc, rev, kservice.Config{BaseDomain: baseDomain})
		if err != nil {
			return nil, err
		}
		id, err := kservice.ID(svc)
		if err != nil {
			return nil, err
		}
		key, err := id.Key()
		if err != nil {
			return nil, err
		}
		apps[key] = app
	}
	return apps, nil
}

// bucketApps reads the bucket when it has reached the last event.
func (t *tour) bucketApps(ctx context.Context) (map[string]*appv1.App, error) {
	all := t.events.all()
	if err := t.events.bucketReaches(ctx, all[len(all)-1]); err != nil {
		return nil, err
	}
	kv, err := t.events.js.KeyValue(ctx, subjects.DefaultBucket)
	if err != nil {
		return nil, err
	}
	keys, err := kv.ListKeys(ctx)
	if err != nil {
		return nil, err
	}
	apps := map[string]*appv1.App{}
	for key := range keys.Keys() {
		entry, err := kv.Get(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("get %s: %w", key, err)
		}
		app := &appv1.App{}
		if err := unmarshal(entry.Value(), subjects.ContentTypeJSON, app); err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		apps[key] = app
	}
	return apps, nil
}

// bucketReaches waits until the bucket reflects an event: entries and delete
// markers carry the sequence of theirs.
func (w *watcher) bucketReaches(ctx context.Context, e event) error {
	stream, err := w.js.Stream(ctx, subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		return err
	}
	key, err := e.id.Key()
	if err != nil {
		return err
	}
	wanted := strconv.FormatUint(e.sequence, 10)
	for range 200 {
		msg, err := stream.GetLastMsgForSubject(ctx, subjects.BucketSubject(subjects.DefaultBucket, key))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err
		}
		if err == nil && msg.Header.Get(subjects.HeaderEventSequence) == wanted {
			return nil
		}
		if err := testenv.Pause(ctx, bucketPoll); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s has not reached event %s within %s", key, wanted, 200*bucketPoll)
}
