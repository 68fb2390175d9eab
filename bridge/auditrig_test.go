package bridge

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// lively is a bridge whose sessions a test runs itself, without Kubernetes and without a guard:
// what the audit does not find, nothing finds.
type lively struct {
	t       testing.TB
	bridge  *Bridge
	session *session
	js      jetstream.JetStream
	audit   *audit.StoragePart
	end     func() error
	version int
}

func newLively(t testing.TB, url string) *lively {
	t.Helper()
	nc, err := nats.Connect(url, append(natsconn.Options("test", zap.NewNop()), nats.Timeout(suite.Patience))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := New(Config{
		ClusterName: "test", Prefix: subjects.DefaultPrefix, Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket, StreamReplicas: 1,
		Encoding: EncodingJSON, App: kservice.Config{BaseDomain: "apps.example.com"}, WatchBufferSize: 100, PendingBytes: 1 << 30,
		MaxDelay: time.Minute, Namespaces: []string{"flyte"},
	}, &rest.Config{Host: "https://127.0.0.1:1"}, nc, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	b.clusterUID = "c1"
	b.unread.set("")
	l := &lively{t: t, bridge: b, js: b.js, version: 1000, audit: b.newStorageAudit([]string{"flyte"})}
	b.source.Revisions().OnAdd(testRevision("99", 2), false)
	l.begin()
	t.Cleanup(func() {
		b.source.Close()
		if err := l.end(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// begin brings a session to life.
func (l *lively) begin() {
	l.t.Helper()
	b := l.bridge
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.t.Context()))
	group, ctx := errgroup.WithContext(ctx)
	s := b.newSession(&watch.Cluster{Namespaces: []string{"flyte"}, Log: b.log})
	s.group, s.cancel = group, cancel
	b.memory.checked.Store(b.nc.Stats().Reconnects)
	var snap *store.Snapshot
	poll(l.t, "open stream and bucket", func() (err error) {
		snap, err = s.open(ctx)
		return err
	})
	s.publishFrom = s.storage.Stream.State.LastSeq
	s.memory.doubts.mark(snap, s.subjects)
	s.projector = s.newProjector(snap)
	s.empty = s.storage.Stream.State.Msgs == 0 && snap.Keys == 0
	group.Go(func() error { return s.projector.Run(ctx, snap) })
	select {
	case <-s.projector.CaughtUp:
	case <-ctx.Done():
		l.t.Fatal(context.Cause(ctx))
	}
	s.publishFrom = max(s.publishFrom, s.projector.Delivered())
	records, _ := s.projector.TakeRecords()
	var published map[subjects.AppID]app.State
	poll(l.t, "read what was published", func() (err error) {
		published, err = s.readPublished(ctx, records)
		return err
	})
	s.publish(ctx, records, published)
	l.session = s
	l.end = func() error {
		cancel(errStopped)
		err := group.Wait()
		b.source.Release()
		b.publishing.Store(nil)
		return err
	}
}

// app is a version of an app's Knative Service.
func (l *lively) app(name string, more ...func(*kservice.Service)) *kservice.Service {
	l.version++
	svc := apptest.Service("u-"+name, fmt.Sprint(l.version), "True")
	svc.Name = name
	svc.Annotations[kservice.AnnotationAppID] = "p/d/" + name
	for _, change := range more {
		change(svc)
	}
	return svc
}

// shows has the informer show an app.
func (l *lively) shows(name string, more ...func(*kservice.Service)) *kservice.Service {
	svc := l.app(name, more...)
	l.bridge.source.Services().OnAdd(svc, false)
	return svc
}

func (l *lively) deletes(svc *kservice.Service) {
	gone := *svc
	l.version++
	gone.ResourceVersion = fmt.Sprint(l.version)
	l.bridge.source.Services().OnDelete(&gone)
}

// catchesUp waits until everything is published and in the bucket.
func (l *lively) catchesUp() {
	l.t.Helper()
	s := l.session
	poll(l.t, "everything is in the bucket", func() error {
		if n, _ := s.queue.Oldest(); n > 0 {
			return fmt.Errorf("%d changes wait", n)
		}
		if highest, written := s.publisher.Highest(), s.projector.Position(); written < highest {
			return fmt.Errorf("the bucket is at %d of %d", written, highest)
		}
		return nil
	})
}

// poll waits until check returns nil.
func poll(t testing.TB, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, suite.Patience, what, check)
}

// screens returns the suspects.
func (l *lively) screens() []string {
	l.t.Helper()
	suspects, err := l.audit.Screen(l.t.Context(), &audit.Pace{})
	if err != nil {
		l.t.Fatal(err)
	}
	return suspects
}

// finds screens, looks at the suspects and returns the differences as "app kind side".
func (l *lively) finds() (found []audit.Difference, words []string) {
	l.t.Helper()
	suspects := l.screens()
	looked, err := l.audit.Look(l.t.Context(), suspects)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, d := range looked.Findings {
		words = append(words, strings.TrimPrefix(d.Name(), "p/d/")+" "+string(d.Kind)+" "+string(d.Side))
		l.t.Log(d)
	}
	for name := range looked.Changing {
		words = append(words, name+" changing")
	}
	return looked.Findings, words
}

func (l *lively) stream(name string) jetstream.Stream {
	l.t.Helper()
	stream, err := l.js.Stream(l.t.Context(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	return stream
}

// key is the subject of an app's entry.
func (l *lively) key(name string) string {
	l.t.Helper()
	subject, err := l.session.bucket.Subject(otherApp(name))
	if err != nil {
		l.t.Fatal(err)
	}
	return subject
}

// entry is an app's entry as it is stored.
func (l *lively) entry(name string) *store.Message {
	l.t.Helper()
	m, err := store.LastMessage(l.t.Context(), l.bridge.js, subjects.BucketStream(subjects.DefaultBucket), l.key(name))
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

// forge writes an entry, without the headers that JetStream reads.
func (l *lively) forge(subject string, of *store.Message, data []byte) {
	l.t.Helper()
	h := maps.Clone(of.Header)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	if _, err := l.js.PublishMsg(l.t.Context(), &nats.Msg{Subject: subject, Header: h, Data: data}); err != nil {
		l.t.Fatal(err)
	}
}

// last is an app's last event.
func (l *lively) last(name string) *plan.Event {
	l.t.Helper()
	e, err := store.NewReader(l.bridge.js, subjects.DefaultStream, l.bridge.subjects).LastEvent(l.t.Context(), otherApp(name), 0)
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

// kindsFrom are the events behind a sequence, as "kind app".
func (l *lively) kindsFrom(sequence uint64) (kinds []string) {
	l.t.Helper()
	err := store.NewReader(l.bridge.js, subjects.DefaultStream, l.bridge.subjects).EachMessage(l.t.Context(), l.bridge.subjects.Events(), sequence+1, 1<<62, func(m *store.Message) {
		id, kind, err := l.bridge.subjects.ParseEvent(m.Subject)
		if err != nil {
			l.t.Error(err)
		}
		kinds = append(kinds, string(kind)+" "+id.Name)
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return kinds
}

func (l *lively) lastSequence() uint64 {
	l.t.Helper()
	info, err := l.stream(subjects.DefaultStream).Info(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return info.State.LastSeq
}
