package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
)

// TestVerifyUnderLoad: what a bridge has under way is no difference, and a
// repair beside it does no harm.
func TestVerifyUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	g := w.begin(30, 4, 12, recreateEvery(3))
	loading := w.loading(g)
	bucket := must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.BucketStream(cfg.Bucket)))
	runs := 0
	for busy := true; busy; runs++ {
		report, _, err := w.verifyBeside(cfg, false)
		if err != nil || len(report.Differences) > 0 {
			t.Errorf("run %d: %v, %v", runs, report.Differences, err)
		}
		// A key that the bridge does not touch again by itself.
		must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), subjects.BucketSubject(cfg.Bucket, "x"), []byte("hello")))
		for id := range w.appKeys(bucket, cfg) {
			must[any](t)(nil, bucket.Purge(t.Context(), jetstream.WithPurgeSubject(subjects.BucketSubject(cfg.Bucket, id))))
			break
		}
		report, repaired, err := w.verifyBeside(cfg, true)
		if err != nil || len(report.Differences) > 0 || repaired == 0 {
			t.Errorf("run %d: %d repaired, left %v, %v", runs, repaired, report.Differences, err)
		}
		busy = loading()
	}
	t.Logf("%d runs", runs)
	r.waitReady()
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	w.findsNothing(cfg, 30*time.Second)
	w.checkHeaders(w.events(0))
	must[any](t)(nil, r.stop())
}

// verifyBeside compares beside a bridge that publishes. What lasts for seconds is looked at again
// for longer: a machine that stalls may hold up the bridge alone.
func (w *world) verifyBeside(cfg bridge.Config, repair bool) (report *audit.Report, repaired int, err error) {
	w.t.Helper()
	for _, confirmFor := range []time.Duration{2 * time.Second, 30 * time.Second} {
		report, err = w.verify(cfg, audit.Options{ConfirmFor: confirmFor, Repair: repair})
		if report != nil {
			repaired += report.Repaired
		}
		if err != nil || len(report.Differences) == 0 {
			break
		}
	}
	return report, repaired, err
}

// appKeys are the keys of the bucket that are an app's.
func (w *world) appKeys(bucket jetstream.Stream, cfg bridge.Config) map[string]struct{} {
	w.t.Helper()
	info := must[*jetstream.StreamInfo](w.t)(bucket.Info(w.t.Context(), jetstream.WithSubjectFilter(">")))
	keys := map[string]struct{}{}
	for subject := range info.State.Subjects {
		key := must[string](w.t)(subjects.ParseBucketSubject(cfg.Bucket, subject))
		if _, err := subjects.ParseKey(key); err == nil {
			keys[key] = struct{}{}
		}
	}
	return keys
}

// TestVerifyRepairsBesideABridge: both write at the same time, and the order
// stays what it has to be.
func TestVerifyRepairsBesideABridge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	g := w.begin(30, 4, 12, recreateEvery(3))
	loading := w.loading(g)
	// The bridge makes a bucket that is gone itself, at once while apps change and
	// within seconds otherwise: a few more tries let a repair be faster.
	made, busy := 0, true
	for after := 0; busy || (made == 0 && after < 3); {
		if !busy {
			after++
		}
		must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))
		// So short a confirmation that much of what it finds is under way: what
		// is left then says nothing.
		report, err := w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true})
		if err != nil {
			t.Log(err)
		}
		for _, repair := range report.Repairs {
			if repair.Kind == audit.DifferenceBucketMissing {
				made++
			}
		}
		r.waitReady()
		busy = loading()
	}
	t.Logf("%d buckets were made by a repair", made)
	r.waitReady()
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	w.findsNothing(cfg, 30*time.Second)
	must[any](t)(nil, r.stop())
	events := w.events(0)
	w.checkHeaders(events)
	noStateTwice(t, events)
}

// TestVerifyEnds: an app that changes all the time while nothing is published
// is a difference all the same, and found in bounded time.
func TestVerifyEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	w.waitFor(0, "created one")
	must[any](t)(nil, r.stop())
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "before verify begins"))
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil && ctx.Err() == nil; i++ {
			_, err = w.Failed(ctx, svc, "Broken", fmt.Sprint(i))
		}
		if ctx.Err() != nil {
			err = nil
		}
		changed <- err
	}()
	// That it ends is the test: no change stops it, and the test's deadline is the bound.
	report, err := w.verify(cfg, audit.Options{ConfirmFor: 300 * time.Millisecond})
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if got, want := kinds(report), []string{"one other_version"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestVerifyUnreachable: what does not answer is a failure, not a difference.
func TestVerifyUnreachable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	log := zap.NewNop()
	nc := must[*nats.Conn](t)(nats.Connect(w.server.ClientURL(), append(natsconn.Options("verify", log), nats.Timeout(patience))...))
	defer nc.Close()
	opts := audit.Options{Timeout: 10 * time.Second} // the part that does answer may be slow
	kube := rest.CopyConfig(w.Config)
	kube.Host = "https://127.0.0.1:1"
	if _, err := bridge.Verify(t.Context(), cfg, kube, nc, log, opts); err == nil || !strings.HasPrefix(err.Error(), "Kubernetes did not answer within 10s: ") {
		t.Errorf("got %v", err)
	}
	w.server.Shutdown()
	w.server.WaitForShutdown()
	report, err := bridge.Verify(t.Context(), cfg, w.Config, nc, log, opts)
	if err == nil || !strings.HasPrefix(err.Error(), "NATS did not answer within 10s: NATS is not connected to ") || len(report.Differences) > 0 {
		t.Errorf("got %v, %v", report.Differences, err)
	}
}
