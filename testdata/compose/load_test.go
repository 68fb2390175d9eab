package compose

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	loadApps     = 10
	loadInterval = 50 * time.Millisecond
)

// load changes a few apps, one change after the other.
type load struct {
	t       *testing.T
	cluster *testenv.Cluster
	next    int
}

func newLoad(t *testing.T, cluster *testenv.Cluster) *load {
	return &load{t: t, cluster: cluster}
}

// write makes n changes.
func (l *load) write(n int) {
	l.t.Helper()
	l.begin(n).wait()
}

// begin makes n changes while the caller does something else. There is one begin at a time.
func (l *load) begin(n int) *writing {
	w := &writing{t: l.t}
	w.done.Go(func() {
		ticker := time.NewTicker(loadInterval)
		defer ticker.Stop()
		for range n {
			select {
			case <-l.t.Context().Done():
				w.err = l.t.Context().Err()
				return
			case <-ticker.C:
			}
			if w.err = l.change(l.t.Context()); w.err != nil {
				return
			}
		}
	})
	return w
}

// change is the next one. Each app is created, becomes ready, is changed and scaled, and is deleted.
func (l *load) change(ctx context.Context) error {
	app := testenv.App{Project: "shop", Domain: "development", Name: fmt.Sprintf("app-%d", l.next%loadApps)}
	step := l.next / loadApps
	l.next++
	svc := app.Service()
	var err error
	switch step % 8 {
	case 0:
		_, err = l.cluster.Create(ctx, app)
	case 1:
		_, err = l.cluster.Progressing(ctx, svc)
	case 2:
		_, err = l.cluster.Ready(ctx, svc, "", 1)
	case 4:
		_, err = l.cluster.Scale(ctx, svc, int32(step%5+2))
	case 7:
		err = l.cluster.Delete(ctx, svc)
	default:
		_, err = l.cluster.Patch(ctx, svc, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"example.com/touched": fmt.Sprint(l.next)}},
		})
	}
	if err != nil {
		return fmt.Errorf("change %d of %s: %w", step, app.Name, err)
	}
	return nil
}

// writing are changes that are being made.
type writing struct {
	t    *testing.T
	done sync.WaitGroup
	err  error
}

func (w *writing) wait() {
	w.t.Helper()
	w.done.Wait()
	if w.err != nil {
		w.t.Fatal(w.err)
	}
}

// audit compares everything that etcd held with the stream and the bucket, until there is no
// difference.
func (w *clusterWorld) audit() audit.Report {
	w.t.Helper()
	var report audit.Report
	w.eventually("stream and bucket have every change, in order and once", func(ctx context.Context) error {
		in, err := w.auditInput(ctx)
		if err != nil {
			return err
		}
		report = audit.Check(in)
		if problems := report.Problems(); len(problems) > 0 {
			return fmt.Errorf("%s; the first: %s", report, problems[0])
		}
		return nil
	})
	if report.Changes == 0 || report.Events == 0 {
		w.t.Fatalf("there is nothing to compare: %s", report)
	}
	return report
}

func (w *clusterWorld) auditInput(ctx context.Context) (audit.Input, error) {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return audit.Input{}, err
	}
	var services servingv1.ServiceList
	if err := w.cluster.Client.List(ctx, &services, client.InNamespace(testenv.DefaultNamespace)); err != nil {
		return audit.Input{}, err
	}
	revision, err := strconv.ParseInt(services.ResourceVersion, 10, 64)
	if err != nil {
		return audit.Input{}, err
	}
	if err := w.history.WaitFor(ctx, revision); err != nil {
		return audit.Input{}, err
	}
	in := audit.Input{Subjects: names, Bucket: subjects.DefaultBucket, ClusterName: "default"}
	for _, c := range w.history.Changes() {
		in.Changes = append(in.Changes, audit.Change(c))
	}
	if in.Events, err = messages(ctx, w.js, subjects.DefaultStream); err != nil {
		return in, err
	}
	writes, err := messages(ctx, w.js, subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		return in, err
	}
	newest := map[string]int{}
	for i, m := range writes {
		newest[m.Subject] = i
	}
	for i, m := range writes {
		if newest[m.Subject] == i {
			in.Entries = append(in.Entries, m)
		}
	}
	return in, nil
}

// messages reads a whole stream.
func messages(ctx context.Context, js jetstream.JetStream, name string) ([]audit.Message, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	var all []audit.Message
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	if consumer.CachedInfo().NumPending == 0 {
		return nil, nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, err
		}
		all = append(all, audit.Message{
			Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp,
		})
		if meta.NumPending == 0 {
			return all, nil
		}
	}
}
