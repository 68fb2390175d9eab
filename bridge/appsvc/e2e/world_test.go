// Package e2e_test operates apps through the program as it is built: a real API
// server with etcd, a small kubelet, `appbridge serve` with its embedded server or
// beside a stock one, and the stock nats CLI.
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	stream   = "FLYTE_APPS"
	bucket   = "flyte-apps"
	patience = suite.Patience
)

// shared is what the tests use that need nothing special: started by the first
// that asks.
var shared struct { //nolint:gochecknoglobals // one cluster for all tests
	once sync.Once
	*world
	err error
}

// world is a cluster with a kubelet, and a bridge.
type world struct{ *kubesuite.World }

func TestMain(m *testing.M) {
	suite.Main(m, func() error {
		if shared.world == nil {
			return nil
		}
		return shared.Stop()
	})
}

// sharedWorld has a bridge that changes apps.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	shared.once.Do(func() {
		shared.world, shared.err = newWorld(context.Background(), testenv.Options{}, "", "--enable-writes", "--base-domain", "apps.example.com")
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

// ownWorld is a world of a test's own beside a NATS server, which the bridge runs when it has no
// url.
func ownWorld(t *testing.T, opts testenv.Options, url string, options ...string) *world {
	t.Helper()
	w, err := newWorld(t.Context(), opts, url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func newWorld(ctx context.Context, opts testenv.Options, url string, options ...string) (*world, error) {
	w := &world{}
	var err error
	if w.World, err = kubesuite.StartWorld(ctx, opts); err != nil {
		return nil, err
	}
	w.NATS = url
	if _, err := w.Serve(ctx, map[string]int{appsvc.ServiceName: 10}, options...); err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	return w, nil
}

// connect is a connection of a test that speaks Go.
func (w *world) connect(t *testing.T) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(w.NATS, nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// answer is what somebody who asks is told.
type answer struct {
	body   string
	header nats.Header
}

// refused is the error that an answer is, empty when it is none.
func (a answer) refused() string {
	if code := a.header.Get(subjects.HeaderServiceErrorCode); code != "" {
		return code + " " + a.header.Get(subjects.HeaderServiceError)
	}
	return ""
}

// late reports whether Kubernetes was too slow for the service; the write may have been done.
func (a answer) late() bool {
	code := a.header.Get(subjects.HeaderServiceErrorCode)
	return code == subjects.CodeUnavailable.HeaderValue() || code == subjects.CodeDeadlineExceeded.HeaderValue()
}

// outcome is what a write came to.
func (a answer) outcome() subjects.Outcome {
	return subjects.Outcome(a.header.Get(subjects.HeaderOutcome))
}

// message reads a body that is not an error.
func (a answer) message(t *testing.T, m proto.Message) {
	t.Helper()
	if text := a.refused(); text != "" {
		t.Fatal(text)
	}
	if err := appv1.Decode([]byte(a.body), a.header.Get(subjects.HeaderContentType), m); err != nil {
		t.Fatalf("%q: %v", a.body, err)
	}
}

// types asks as somebody does who has the stock client alone. It has to end well
// also when the request is refused, since then it was answered, too.
func (w *world) types(t *testing.T, subject, body string) answer {
	t.Helper()
	c := w.Start(t, fmt.Sprintf(`nats req --timeout=5m %s '%s'`, subject, body))
	a := answer{body: strings.TrimSpace(c.Wait()), header: nats.Header{}}
	for _, found := range regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d ([A-Za-z-]+): (.*)$`).FindAllStringSubmatch(c.Stderr(), -1) {
		a.header[found[1]] = append(a.header[found[1]], found[2])
	}
	if len(a.header) == 0 {
		t.Fatalf("%s: no answer: %s", subject, c.Stderr())
	}
	return a
}

// asks does the same in Go.
func asks(ctx context.Context, nc *nats.Conn, subject, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, subject, []byte(body))
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", subject, err)
	}
	return answer{string(msg.Data), msg.Header}, nil
}

func subjectOf(t *testing.T, op subjects.APIOp, id subjects.AppID) string {
	t.Helper()
	subject, err := names(t).API(op, id)
	if err != nil {
		t.Fatal(err)
	}
	return subject
}

func names(t *testing.T) subjects.Subjects {
	t.Helper()
	all, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// event is one of the stream.
type event struct {
	id       subjects.AppID
	kind     subjects.EventKind
	sequence uint64
	header   nats.Header
	app      *appv1.App // as the event leaves it; before a delete
}

// follower reads events.
type follower struct {
	t        *testing.T
	messages jetstream.MessagesContext
}

// follow reads the events of a filter from the stream's beginning on.
func (w *world) follow(t *testing.T, filter string) *follower {
	t.Helper()
	js, err := jetstream.New(w.connect(t))
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(messages.Stop)
	return &follower{t, messages}
}

// next waits for the next event.
func (f *follower) next() event {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	msg, err := f.messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		f.t.Fatalf("no event comes: %v", err)
	}
	meta, err := msg.Metadata()
	if err != nil {
		f.t.Fatal(err)
	}
	e := event{sequence: meta.Sequence.Stream, header: msg.Headers()}
	if e.id, e.kind, err = names(f.t).ParseEvent(msg.Subject()); err != nil {
		f.t.Fatal(err)
	}
	told := &appv1.WatchResponse{}
	answer{string(msg.Data()), nats.Header{subjects.HeaderContentType: {e.header.Get(subjects.CEDataContentType)}}}.message(f.t, told)
	switch {
	case told.GetCreateEvent() != nil:
		e.app = told.GetCreateEvent().GetApp()
	case told.GetUpdateEvent() != nil:
		e.app = told.GetUpdateEvent().GetUpdatedApp()
	default:
		e.app = told.GetDeleteEvent().GetApp()
	}
	return e
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, patience, what, check)
}

// take is a short wait between two looks at something that goes on.
func take(t *testing.T, d time.Duration) {
	t.Helper()
	if err := testenv.Pause(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}
