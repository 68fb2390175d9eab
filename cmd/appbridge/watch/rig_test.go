package watch_test

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is what ages are counted from.
var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// step is one event of an app.
type step struct {
	app        string // project/domain/name
	kind       subjects.EventKind
	status     string
	generation int
	version    int    // resourceVersion; 0: one more than the event before
	uid        string // empty: that of the app
	revision   string
	since      int // when the Ready condition changed, in seconds before now; 0: never
	replicas   uint32
	image      string
	message    string
	truncated  string
}

// publisher writes a stream and a bucket as a bridge does.
type publisher struct {
	tb    testing.TB
	js    jetstream.JetStream
	names subjects.Subjects
	last  map[subjects.AppID]last
	count int
}

type last struct {
	sequence uint64
	status   string
	app      *appv1.App
}

func jetStream(tb testing.TB) *server.Server {
	tb.Helper()
	return suite.NATS(tb, &server.Options{JetStream: true, StoreDir: tb.TempDir()})
}

func dial(tb testing.TB, url string) jetstream.JetStream {
	tb.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(suite.Patience))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

const streamID = "pX2mVQkQGm3rXo0dJq8b1w"

func newPublisher(tb testing.TB, url string) *publisher {
	tb.Helper()
	p := &publisher{tb: tb, js: dial(tb, url), last: map[subjects.AppID]last{}, count: 100}
	var err error
	if p.names, err = subjects.New(subjects.DefaultPrefix); err != nil {
		tb.Fatal(err)
	}
	metadata := map[string]string{subjects.MetadataStreamID: streamID}
	for _, cfg := range []jetstream.StreamConfig{
		{Name: subjects.DefaultStream, Subjects: []string{p.names.Events()}, Metadata: metadata},
		{
			Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{subjects.BucketFilter(subjects.DefaultBucket)},
			MaxMsgsPerSubject: 1, AllowDirect: true, AllowRollup: true, Discard: jetstream.DiscardNew, Metadata: metadata,
		},
	} {
		if _, err := p.js.CreateStream(tb.Context(), cfg); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}

func idOf(text string) subjects.AppID {
	parts := strings.SplitN(text, "/", 3)
	return subjects.AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}
}

// state is the App after a step.
func (s step) state(id subjects.AppID) *appv1.App {
	status := appv1.Status_DeploymentStatus(appv1.Status_DeploymentStatus_value["DEPLOYMENT_STATUS_"+s.status])
	return &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Org: "flyte", Project: id.Project, Domain: id.Domain, Name: id.Name}},
		Spec:     &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{Image: "registry.example.com/" + s.image}}},
		Status: &appv1.Status{
			CurrentReplicas: s.replicas, CreatedAt: timestamppb.New(now.Add(-48 * time.Hour)),
			Conditions: []*appv1.Condition{{DeploymentStatus: status, Message: s.message, LastTransitionTime: timestamppb.New(now.Add(-time.Duration(s.since) * time.Second))}},
		},
	}
}

// publish appends the event of a step, and projects it. It returns the event's sequence.
func (p *publisher) publish(s step) uint64 {
	p.tb.Helper()
	id := idOf(s.app)
	before := p.last[id]
	if p.count++; s.version > 0 {
		p.count = s.version
	}
	if s.uid == "" {
		s.uid = "uid-" + id.Name
	}
	app := s.state(id)
	h := nats.Header{}
	set := func(name, value string) {
		if value != "" && value != "0" {
			h.Set(name, value)
		}
	}
	set(subjects.CEID, subjects.MessageID{UID: s.uid, ResourceVersion: strconv.Itoa(p.count), PreviousSequence: before.sequence}.String())
	set(subjects.CEType, s.kind.Type())
	set(subjects.CETime, now.Add(-time.Minute).Format(time.RFC3339))
	set(subjects.HeaderUID, s.uid)
	set(subjects.HeaderResourceVersion, strconv.Itoa(p.count))
	set(subjects.HeaderGeneration, strconv.Itoa(s.generation))
	set(subjects.HeaderRevision, s.revision)
	set(subjects.HeaderPreviousSequence, strconv.FormatUint(before.sequence, 10))
	set(subjects.HeaderTruncated, s.truncated)
	var event appv1.WatchResponse
	switch s.kind {
	case subjects.Created:
		event.Event = &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: app}}
		set(subjects.HeaderAppStatus, s.status)
	case subjects.Updated:
		update := &appv1.UpdateEvent{UpdatedApp: app, OldApp: before.app}
		if s.truncated != "" {
			update.OldApp = nil
		}
		event.Event = &appv1.WatchResponse_UpdateEvent{UpdateEvent: update}
		set(subjects.HeaderAppStatus, s.status)
		set(subjects.HeaderPreviousAppStatus, before.status)
	case subjects.Deleted:
		app = before.app
		event.Event = &appv1.WatchResponse_DeleteEvent{DeleteEvent: &appv1.DeleteEvent{App: app}}
		set(subjects.HeaderPreviousAppStatus, before.status)
		set(subjects.HeaderDeletedResourceVersion, strconv.Itoa(p.count))
	}
	data, form, err := appv1.Encode(&event, subjects.ContentTypeJSON)
	if err != nil {
		p.tb.Fatal(err)
	}
	h.Set(subjects.CEDataContentType, form)
	subject, err := p.names.Event(id, s.kind)
	if err != nil {
		p.tb.Fatal(err)
	}
	ack, err := p.js.PublishMsg(p.tb.Context(), &nats.Msg{Subject: subject, Header: h, Data: data})
	if err != nil {
		p.tb.Fatal(err)
	}
	p.last[id] = last{sequence: ack.Sequence, status: s.status, app: app}
	p.project(id, s.kind, app, h, ack.Sequence)
	return ack.Sequence
}

func (p *publisher) project(id subjects.AppID, kind subjects.EventKind, app *appv1.App, event nats.Header, sequence uint64) {
	p.tb.Helper()
	h := nats.Header{subjects.HeaderEventSequence: {strconv.FormatUint(sequence, 10)}}
	for name, values := range event {
		h[name] = values
	}
	key, err := id.Key()
	if err != nil {
		p.tb.Fatal(err)
	}
	msg := &nats.Msg{Subject: subjects.BucketSubject(subjects.DefaultBucket, key), Header: h}
	if kind == subjects.Deleted {
		h.Set(subjects.HeaderKVOperation, subjects.KVDelete)
	} else if msg.Data, _, err = appv1.Encode(app, subjects.ContentTypeJSON); err != nil {
		p.tb.Fatal(err)
	}
	if _, err := p.js.PublishMsg(p.tb.Context(), msg); err != nil {
		p.tb.Fatal(err)
	}
}

// buffer is an output that is read while it is written.
type buffer struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.String()
}

// running is a watch under way.
type running struct {
	tb         testing.TB
	out, notes *buffer
	stop       context.CancelFunc
	done       chan struct{} // closed when it has ended
	err        error         // read after done
}

// start runs a watch until the end of the test.
func start(tb testing.TB, js jetstream.JetStream, opts watch.Options) *running {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	r := &running{tb: tb, out: &buffer{}, notes: &buffer{}, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = watch.Run(ctx, js, opts, watch.Output{
			Lines: r.out, Notes: r.notes, Down: func() string { return "" }, Now: func() time.Time { return now },
		})
	}()
	tb.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// end waits for the end.
func (r *running) end() error {
	r.tb.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(suite.Patience):
		r.tb.Fatalf("it does not end; it has printed\n%s\n%s", r.out, r.notes)
		return nil
	}
}

// prints waits until a text was printed.
func (r *running) prints(text string) {
	r.tb.Helper()
	r.waitFor(r.out, text)
}

// waitFor waits until an output has a text. A watch that has ended prints no more.
func (r *running) waitFor(out *buffer, text string) {
	r.tb.Helper()
	suite.Eventually(r.tb, suite.Patience, "it prints "+text, func() error {
		over := r.over()
		if strings.Contains(out.String(), text) {
			return nil
		}
		if over {
			r.tb.Fatalf("it ended with %v, without %q; it has printed\n%s\n%s", r.err, text, r.out, r.notes)
		}
		return errors.New(r.out.String() + "\n" + r.notes.String())
	})
}

// over reports whether it has ended.
func (r *running) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// goesOn fails the test if it has ended.
func (r *running) goesOn(after string) {
	r.tb.Helper()
	if r.over() {
		r.tb.Fatalf("it ended with %v after %s; it has printed\n%s\n%s", r.err, after, r.out, r.notes)
	}
}

// restartable is a server that keeps its streams in a folder.
func restartable(tb testing.TB, port int, dir string) *server.Server {
	tb.Helper()
	return suite.NATS(tb, &server.Options{JetStream: true, StoreDir: dir, Port: port})
}
