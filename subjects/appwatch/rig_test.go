package appwatch_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience is how long a test waits for what happens in milliseconds on an idle machine.
const patience = time.Minute

// writer writes a stream and a bucket as a bridge does.
type writer struct {
	t      testing.TB
	nc     *nats.Conn
	js     jetstream.JetStream
	names  subjects.Subjects
	stream string
	bucket string
	form   string // of payloads
	last   map[subjects.AppID]uint64
	status map[subjects.AppID]string
	count  int
	held   bool // the bucket is not written
	again  bool // what has no answer is sent again
}

func dial(tb testing.TB, url string) (*nats.Conn, jetstream.JetStream) {
	tb.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.RetryOnFailedConnect(true), nats.Timeout(patience), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		tb.Fatal(err)
	}
	return nc, js
}

const streamID = "pX2mVQkQGm3rXo0dJq8b1w"

func streamConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{subjects.DefaultPrefix + ".events.>"}, AllowDirect: true,
		Metadata: map[string]string{subjects.MetadataStreamID: streamID},
	}
}

func bucketConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{subjects.BucketFilter(subjects.DefaultBucket)},
		MaxMsgsPerSubject: 1, AllowDirect: true, DenyDelete: true, AllowRollup: true, Discard: jetstream.DiscardNew,
		Metadata: map[string]string{subjects.MetadataStreamID: streamID},
	}
}

// newWriter makes stream and bucket on a server.
func newWriter(t testing.TB, url string) *writer {
	t.Helper()
	w := connectWriter(t, url)
	w.create(1)
	return w
}

func connectWriter(t testing.TB, url string) *writer {
	t.Helper()
	w := &writer{t: t, stream: subjects.DefaultStream, bucket: subjects.DefaultBucket, form: subjects.ContentTypeJSON, last: map[subjects.AppID]uint64{}, status: map[subjects.AppID]string{}}
	var err error
	if w.names, err = subjects.New(subjects.DefaultPrefix); err != nil {
		t.Fatal(err)
	}
	w.nc, w.js = dial(t, url)
	return w
}

// create makes stream and bucket.
func (w *writer) create(replicas int) {
	w.t.Helper()
	for _, cfg := range []jetstream.StreamConfig{streamConfig(), bucketConfig()} {
		cfg.Replicas = replicas
		suite.Eventually(w.t, patience, "stream "+cfg.Name, func() error {
			ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
			defer cancel()
			_, err := w.js.CreateStream(ctx, cfg)
			return err
		})
	}
}

func jetStream(tb testing.TB) *server.Server {
	tb.Helper()
	return suite.NATS(tb, &server.Options{JetStream: true, StoreDir: tb.TempDir()})
}

func id(text string) subjects.AppID {
	parts := strings.Split(text, "/")
	return subjects.AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}
}

func (w *writer) publish(msg *nats.Msg) uint64 {
	w.t.Helper()
	var ack *jetstream.PubAck
	publish := func() (err error) {
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		if w.again {
			ctx, cancel = context.WithTimeout(w.t.Context(), time.Second)
		}
		defer cancel()
		ack, err = w.js.PublishMsg(ctx, msg)
		return err
	}
	if w.again {
		suite.Eventually(w.t, patience, "publish "+msg.Subject, publish)
	} else if err := publish(); err != nil {
		w.t.Fatalf("publish %s: %v", msg.Subject, err)
	}
	return ack.Sequence
}

// app is a state of an app that differs from all others.
func (w *writer) app(of subjects.AppID, status string) *appv1.App {
	w.count++
	return &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Project: of.Project, Domain: of.Domain, Name: of.Name}, Revision: uint64(w.count)},
		Spec:     &appv1.Spec{Ingress: &appv1.IngressConfig{Subdomain: status}},
	}
}

type change func(h nats.Header, app *appv1.App)

// event appends an event and projects it into the bucket.
func (w *writer) event(app string, kind subjects.EventKind, status string, changes ...change) uint64 {
	w.t.Helper()
	of := id(app)
	state := w.app(of, status)
	h := nats.Header{}
	uid := "uid-" + of.Name
	h.Set(subjects.CESpecVersion, subjects.SpecVersion)
	h.Set(subjects.CEType, kind.Type())
	h.Set(subjects.CESource, subjects.Source("test"))
	h.Set(subjects.CETime, "2026-11-21T08:51:07Z")
	h.Set(subjects.HeaderUID, uid)
	h.Set(subjects.HeaderResourceVersion, strconv.Itoa(w.count))
	h.Set(subjects.HeaderGeneration, "1")
	if prev := w.last[of]; prev > 0 {
		h.Set(subjects.HeaderPreviousSequence, strconv.FormatUint(prev, 10))
	}
	if kind != subjects.Deleted && status != "" {
		h.Set(subjects.HeaderAppStatus, status)
	}
	if kind != subjects.Created && w.status[of] != "" {
		h.Set(subjects.HeaderPreviousAppStatus, w.status[of])
	}
	for _, c := range changes {
		c(h, state)
	}
	msgID := subjects.MessageID{UID: uid, ResourceVersion: h.Get(subjects.HeaderResourceVersion), PreviousSequence: w.last[of]}.String()
	h.Set(subjects.HeaderMsgID, msgID)
	h.Set(subjects.CEID, msgID)
	subject, err := w.names.Event(of, kind)
	if err != nil {
		w.t.Fatal(err)
	}
	var response appv1.WatchResponse
	switch kind {
	case subjects.Created:
		response.Event = &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: state}}
	case subjects.Updated:
		response.Event = &appv1.WatchResponse_UpdateEvent{UpdateEvent: &appv1.UpdateEvent{UpdatedApp: state, OldApp: state}}
	case subjects.Deleted:
		response.Event = &appv1.WatchResponse_DeleteEvent{DeleteEvent: &appv1.DeleteEvent{App: state}}
	}
	data, form, err := appv1.Encode(&response, w.form)
	if err != nil {
		w.t.Fatal(err)
	}
	h.Set(subjects.CEDataContentType, form)
	sequence := w.publish(&nats.Msg{Subject: subject, Header: h, Data: data})
	w.last[of], w.status[of] = sequence, status
	if kind == subjects.Deleted {
		w.status[of] = ""
	}
	w.project(of, kind, state, h, sequence)
	return sequence
}

func (w *writer) project(of subjects.AppID, kind subjects.EventKind, state *appv1.App, event nats.Header, sequence uint64) {
	w.t.Helper()
	h := nats.Header{}
	for name, values := range event {
		if strings.HasPrefix(name, "Flyte-") || strings.HasPrefix(name, "ce-") {
			h[name] = values
		}
	}
	h.Set(subjects.HeaderEventSequence, strconv.FormatUint(sequence, 10))
	key, err := of.Key()
	if err != nil {
		w.t.Fatal(err)
	}
	msg := &nats.Msg{Subject: subjects.BucketSubject(w.bucket, key), Header: h}
	if kind == subjects.Deleted {
		h.Set(subjects.HeaderKVOperation, subjects.KVDelete)
	} else if msg.Data, _, err = appv1.Encode(state, w.form); err != nil {
		w.t.Fatal(err)
	}
	if !w.held {
		w.publish(msg)
	}
}

// notice appends a notice of loss.
func (w *writer) notice(from, to uint64) {
	w.t.Helper()
	h := nats.Header{}
	first, last := subjects.FormatNotice(subjects.LostRange{From: from, To: to})
	h.Set(subjects.HeaderLostFrom, first)
	h.Set(subjects.HeaderLostTo, last)
	w.publish(&nats.Msg{Subject: w.names.Notice(), Header: h})
}

func (w *writer) purge(stream string, opts ...jetstream.StreamPurgeOpt) {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err == nil {
		err = s.Purge(w.t.Context(), opts...)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// reader is a Watch in a goroutine.
type reader struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	items  []appwatch.Item
	err    error
	read   int // items that the test has looked at
	reason []error
}

// watch starts to read, until the end of the test at the latest.
func watch(t *testing.T, js jetstream.JetStream, opts appwatch.Options) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{t: t, cancel: cancel, done: make(chan struct{})}
	opts.OnRetry = func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reason = append(r.reason, err)
	}
	go func() {
		defer close(r.done)
		for item, err := range appwatch.Watch(ctx, js, opts) {
			r.mu.Lock()
			if err != nil {
				r.err = err
			} else {
				r.items = append(r.items, item)
			}
			r.mu.Unlock()
		}
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *reader) stop() {
	r.cancel()
	<-r.done
}

// line is an item as tests compare it.
func line(it appwatch.Item) string {
	switch it.Type {
	case appwatch.State, appwatch.Event:
		text := fmt.Sprintf("%s %s %s %d", it.Type, it.ID, it.Kind, it.Sequence)
		if it.Changed {
			text += " changed"
		}
		if it.Skipped > 0 {
			text += fmt.Sprintf(" skipped %d", it.Skipped)
		}
		return text
	case appwatch.Mark:
		return fmt.Sprintf("mark %d", it.Position.Sequence)
	default:
		text := it.Type.String()
		for _, reason := range []error{appwatch.ErrNotice, appwatch.ErrRemoved, appwatch.ErrRolledBack, appwatch.ErrOtherStream, appwatch.ErrBucket} {
			if errors.Is(it.Reason, reason) {
				text += ": " + reason.Error()
			}
		}
		if it.Lost.From > 0 {
			text += " " + it.Lost.String()
		}
		return text
	}
}

// next waits for that many more items.
func (r *reader) next(n int) []appwatch.Item {
	r.t.Helper()
	var got []appwatch.Item
	suite.Eventually(r.t, patience, fmt.Sprintf("%d items", n), func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.items)-r.read >= n {
			got = r.items[r.read : r.read+n]
			return nil
		}
		var lines []string
		for _, it := range r.items[r.read:] {
			lines = append(lines, line(it))
		}
		return fmt.Errorf("there are %q, retries %v, error: %w", lines, r.reason, r.err)
	})
	r.read += n
	return got
}

// expect waits for items and compares them.
func (r *reader) expect(want ...string) []appwatch.Item {
	r.t.Helper()
	items := r.next(len(want))
	for i, it := range items {
		if got := line(it); got != want[i] {
			var lines []string
			for _, it := range items {
				lines = append(lines, line(it))
			}
			r.t.Fatalf("item %d is %q, want %q; all: %q", i, got, want[i], lines)
		}
	}
	return items
}
