package logsvc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = suite.Patience

// written is a LogStreamer whose logs a test writes: to show what the service
// does whatever its source does.
type written struct {
	replicas []string
	open     func(ctx context.Context, q logsvc.Query) error // nil: no error
	run      func(ctx context.Context, q logsvc.Query, out logsvc.Sink) error
	taken    atomic.Int64 // streams that are open
	opened   atomic.Int64 // streams there were
}

func (w *written) Open(ctx context.Context, q logsvc.Query) (logsvc.LogStream, error) {
	if w.open != nil {
		if err := w.open(ctx, q); err != nil {
			return nil, err
		}
	}
	w.taken.Add(1)
	w.opened.Add(1)
	return &writtenStream{w, q}, nil
}

type writtenStream struct {
	*written

	q logsvc.Query
}

func (s *writtenStream) Org() string        { return "acme" }
func (s *writtenStream) Replicas() []string { return s.replicas }
func (s *writtenStream) Close()             { s.taken.Add(-1) }

func (s *writtenStream) Run(ctx context.Context, out logsvc.Sink) error { return s.run(ctx, s.q, out) }

// line is a line of the hour at a second.
func line(second int, text string) logsvc.Line {
	return logsvc.Line{Time: time.Date(2026, 11, 21, 8, 0, second, 0, time.UTC), Text: []byte(text)}
}

// forever hands nothing over until the stream ends.
func forever(ctx context.Context, _ logsvc.Query, _ logsvc.Sink) error {
	<-ctx.Done()
	return ctx.Err()
}

// bench is a service at work on a server of its own.
type bench struct {
	t       *testing.T
	server  *server.Server
	nc      *nats.Conn // of the reader
	names   subjects.Subjects
	metrics *prometheus.Registry
	stop    func() error
}

func dial(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append([]nats.Option{nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1)}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newBench(t *testing.T, source logsvc.LogStreamer, change ...func(*logsvc.Config)) *bench {
	t.Helper()
	s := suite.NATS(t, nil)
	return serveOn(t, s, dial(t, s.ClientURL()), dial(t, s.ClientURL()), source, change...)
}

// serveOn runs a service on one connection; the reader has another.
func serveOn(t *testing.T, s *server.Server, own, reader *nats.Conn, source logsvc.LogStreamer, change ...func(*logsvc.Config)) *bench {
	t.Helper()
	return serveOnTwo(t, s, own, own, reader, source, change...)
}

// serveOnTwo runs a service that receives requests on another connection.
func serveOnTwo(t *testing.T, s *server.Server, requests, own, reader *nats.Conn, source logsvc.LogStreamer, change ...func(*logsvc.Config)) *bench {
	t.Helper()
	cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 100, InboxPrefix: "_INBOX", Version: "1.2.3"}
	for _, c := range change {
		c(&cfg)
	}
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, server: s, nc: reader, names: names, metrics: prometheus.NewRegistry()}
	service, err := logsvc.New(cfg, source, requests, own, zaptest.NewLogger(t), b.metrics)
	if err != nil {
		t.Fatal(err)
	}
	service.BePatient(patience)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	ended := false
	b.stop = func() error {
		cancel()
		if ended {
			return nil
		}
		ended = true
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("the service does not stop")
		}
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	b.eventually("the service listens", func() error { return listens(reader, time.Second) })
	return b
}

// listens asks whether the service is there with all that it answers to: it says
// that it is there a moment before.
func listens(nc *nats.Conn, wait time.Duration) error {
	msg, err := nc.Request("$SRV.INFO."+logsvc.ServiceName, nil, wait)
	if err != nil {
		return err
	}
	var info micro.Info
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		return err
	}
	if n := len(info.Endpoints); n != 3 {
		return fmt.Errorf("%d of 3 endpoints", n)
	}
	return nil
}

// untilInTime tells a story again and again until it was in time: a machine that stalls for longer
// than the service waits shows nothing.
func untilInTime(t *testing.T, story func() (inTime bool)) {
	t.Helper()
	for deadline := time.Now().Add(patience); !story(); {
		if time.Now().After(deadline) {
			t.Fatal("it was never in time")
		}
	}
}

func (b *bench) eventually(what string, check func() error) {
	b.t.Helper()
	suite.Eventually(b.t, patience, what, check)
}

// subject is that of a request for the app of every test.
func (b *bench) subject(op subjects.LogOp) string {
	b.t.Helper()
	subject, err := b.names.Logs(op, subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"})
	if err != nil {
		b.t.Fatal(err)
	}
	return subject
}

// inbox is a reader's end of a stream.
type inbox struct {
	t       *testing.T
	subject string
	sub     *nats.Subscription
	msgs    chan *nats.Msg
	last    uint64 // the highest number that nextNew has returned
}

func (b *bench) inbox(subject string) *inbox {
	b.t.Helper()
	in := &inbox{t: b.t, subject: subject, msgs: make(chan *nats.Msg, 100_000)}
	var err error
	if in.sub, err = b.nc.ChanSubscribe(subject, in.msgs); err != nil {
		b.t.Fatal(err)
	}
	if err := b.nc.Flush(); err != nil {
		b.t.Fatal(err)
	}
	return in
}

// tail asks for a stream.
func (b *bench) tail(body string) *inbox {
	b.t.Helper()
	in := b.inbox(b.nc.NewInbox())
	b.publish(b.subject(subjects.LogTail), in.subject, body)
	return in
}

func (b *bench) publish(subject, reply, body string) {
	b.t.Helper()
	if err := b.nc.PublishRequest(subject, reply, []byte(body)); err != nil {
		b.t.Fatal(err)
	}
	if err := b.nc.Flush(); err != nil {
		b.t.Fatal(err)
	}
}

func (in *inbox) next() *nats.Msg {
	in.t.Helper()
	select {
	case msg := <-in.msgs:
		if msg.Header.Get(subjects.HeaderStatus) == subjects.StatusNoResponders && msg.Header.Get(subjects.HeaderLogEnd) == "" {
			in.t.Fatal("nobody serves logs")
		}
		return msg
	case <-time.After(patience):
		in.t.Fatal("nothing comes")
		return nil
	}
}

// nextNew is the next message that did not come before: what a reader with a window does not
// acknowledge in time comes again.
func (in *inbox) nextNew() *nats.Msg {
	in.t.Helper()
	for {
		msg := in.next()
		if !in.again(msg) {
			return msg
		}
	}
}

// again reports whether a message came before.
func (in *inbox) again(msg *nats.Msg) bool {
	in.t.Helper()
	number := msg.Header.Get(subjects.HeaderLogSeq)
	if number == "" {
		return false
	}
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		in.t.Fatal(err)
	}
	if seq <= in.last {
		return true
	}
	in.last = seq
	return false
}

// all is every message up to the end.
func (in *inbox) all() (msgs []*nats.Msg, end *nats.Msg) {
	in.t.Helper()
	for {
		msg := in.next()
		if msg.Header.Get(subjects.HeaderLogEnd) != "" {
			return msgs, msg
		}
		msgs = append(msgs, msg)
	}
}

// text joins the bodies.
func text(msgs []*nats.Msg) string {
	var b strings.Builder
	for _, m := range msgs {
		b.Write(m.Data)
	}
	return b.String()
}

func (b *bench) metric(name string) float64 {
	b.t.Helper()
	families, err := b.metrics.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// idle waits until every slot is back.
func (b *bench) idle(source *written) {
	b.t.Helper()
	suite.Progress(b.t, patience, "requests and streams are left", 0, func() int64 {
		return int64(b.metric("appbridge_log_streams")) + source.taken.Load()
	})
}

// some is a source with two lines of each replica.
func some(replicas ...string) *written {
	return &written{replicas: replicas, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		for i, r := range replicas {
			if err := out.Lines(ctx, r, []logsvc.Line{line(2*i, "one"), line(2*i+1, "two\r")}, false, ""); err != nil {
				return err
			}
		}
		return nil
	}}
}

func TestTail(t *testing.T) {
	t.Parallel()
	both := []string{"checkout-shop-production-1-a", "other-b"}
	const list = "# appbridge: replicas: checkout-shop-production-1-a, other-b\n"
	for _, c := range []struct {
		name, body string
		replicas   []string
		want       string
	}{
		{"one replica", "", both[:1], "# appbridge: replicas: checkout-shop-production-1-a\none\ntwo\n"},
		{"no replica", `{}`, nil, "# appbridge: replicas: none\n"},
		{"two replicas", `{"format": "text"}`, both, list + "1-a one\n1-a two\nother-b one\nother-b two\n"},
		{"raw", `{"format": "raw"}`, both, list + "one\ntwo\r\none\ntwo\r\n"},
		{"timestamps", `{"timestamps": true}`, both[:1], "# appbridge: replicas: checkout-shop-production-1-a\n" +
			"2026-11-21T08:00:00.000000000Z one\n2026-11-21T08:00:01.000000000Z two\n"},
		{"include", `{"include": "^t"}`, both[:1], "# appbridge: replicas: checkout-shop-production-1-a\ntwo\n"},
		{"end of a line with CR", `{"include": "two$"}`, both[:1], "# appbridge: replicas: checkout-shop-production-1-a\ntwo\n"},
		{"exclude", `{"exclude": "^t"}`, both[:1], "# appbridge: replicas: checkout-shop-production-1-a\none\n"},
		{"json", `{"format": "json"}`, both[:1], `{"replicas":{"replicas":[{"appId":{"org":"acme","project":"shop","domain":"production","name":"checkout"},"name":"checkout-shop-production-1-a"}]}}` + "\n" +
			`{"batches":{"logs":[{"replicaId":{"appId":{"org":"acme","project":"shop","domain":"production","name":"checkout"},"name":"checkout-shop-production-1-a"},` +
			`"structuredLines":[{"timestamp":"2026-11-21T08:00:00Z","message":"one","originator":"USER","shortPodName":"1-a"},{"timestamp":"2026-11-21T08:00:01Z","message":"two","originator":"USER","shortPodName":"1-a"}],` +
			`"source":"LOG_LINE_SOURCE_LIVE"}]}}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			source := some(c.replicas...)
			b := newBench(t, source)
			in := b.tail(c.body)
			msgs, end := in.all()
			if got := text(msgs); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			id := msgs[0].Header.Get(subjects.HeaderLogStream)
			for i, m := range msgs {
				if got, want := m.Header.Get(subjects.HeaderLogSeq), fmt.Sprint(i+1); got != want || m.Header.Get(subjects.HeaderLogStream) != id {
					t.Errorf("message %d has the headers %v", i, m.Header)
				}
			}
			if got, want := msgs[0].Header.Get(subjects.HeaderLogReplicas), strings.Join(c.replicas, ","); got != want {
				t.Errorf("the first message names %q, want %q", got, want)
			}
			if len(end.Data) > 0 || end.Header.Get(subjects.HeaderStatus) != "503" || end.Header.Get(subjects.HeaderLogEnd) != "eof" || end.Reply != "" {
				t.Errorf("the end is %q %v", end.Data, end.Header)
			}
			b.idle(source)
		})
	}
}

// Replicas are merged by time. The lines of one replica are never reordered: stdout and stderr share
// a log, and clocks step back.
func TestGetOrder(t *testing.T) {
	t.Parallel()
	logs := map[string][]logsvc.Line{
		"a": {line(1, "Traceback:"), line(3, "  File a"), line(2, "  File b"), line(3, "Error"), line(40, "late"), line(4, "set back"), line(5, "goes on")},
		"b": {line(2, "one"), line(10, "two"), {Text: []byte("three")}, line(50, "four")},
	}
	source := &written{replicas: []string{"a", "b"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		for replica, lines := range logs {
			if err := out.Lines(ctx, replica, lines, false, ""); err != nil {
				return err
			}
		}
		return nil
	}}
	b := newBench(t, source)
	msg, err := b.nc.Request(b.subject(subjects.LogGet), []byte(`{"format": "raw"}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	want := "Traceback:\none\n  File a\n  File b\nError\ntwo\nthree\nlate\nset back\ngoes on\nfour\n"
	if got := string(msg.Data); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What cannot be served is answered with the headers of every micro service,
// one line that names the field, and the end.
func TestRefused(t *testing.T) {
	t.Parallel()
	source := &written{run: forever, open: func(_ context.Context, q logsvc.Query) error {
		switch q.Replica {
		case "broken":
			return errors.New("secret detail")
		case "none":
			return request.Errorf(subjects.CodeNotFound, "replica %q: not one\nof app %s", q.Replica, q.App)
		}
		return nil
	}}
	b := newBench(t, source)
	for _, c := range []struct{ name, body, code, want, end string }{
		{"unknown option", `{"tial": 5}`, "400", `"tial": unknown option, want one of replica, container, tail,`, "error"},
		{"wrong type", `{"tail": "many"}`, "400", `tail: "many": want a whole number of lines from 0 on`, "error"},
		{"negative tail", `{"tail": -1}`, "400", `tail: -1: want a whole number`, "error"},
		{"fraction", `{"tail": 1.5}`, "400", `tail: 1.5: want a whole number`, "error"},
		{"bad expression", `{"include": "("}`, "400", `include: "(": want a regular expression`, "error"},
		{"bad time", `{"since_time": "yesterday"}`, "400", `since_time: "yesterday": want a time like`, "error"},
		{"bad duration", `{"since": "10 minutes"}`, "400", `since: "10 minutes": want a duration like 10m`, "error"},
		{"since in the future", `{"since": "-1m"}`, "400", `since: "-1m": want a duration`, "error"},
		{"both", `{"since": "1m", "since_time": "2026-01-01T00:00:00Z"}`, "400", "want since or since_time, not both", "error"},
		{"null", `{"follow": null}`, "400", `follow: null: want true or false`, "error"},
		{"bad format", `{"format": "xml"}`, "400", `format: "xml": want one of text, raw, json, proto`, "error"},
		{"window", `{"window": 0}`, "400", `window: 0: want a whole number of messages from 1 to 1024`, "error"},
		{"several", `{"tail": -1, "follow": 1}`, "400", `tail: -1: want a whole number of lines from 0 on, or "all"; follow: 1: want true or false`, "error"},
		{"no object", `[1]`, "400", `body: [1]: want nothing or a JSON object`, "error"},
		{"no JSON", `tail=5`, "400", `body: tail=5: want nothing or a JSON object`, "error"},
		{"1 MB", `{"include": "` + strings.Repeat("x", 1<<20-100) + `"}`, "400", "body: ", "error"},
		{"follow what is over", `{"follow": true, "previous": true}`, "400", "follow: true: a previous container writes nothing more", "error"},
		{"not found", `{"replica": "none"}`, "404", `replica "none": not one of app shop/production/checkout`, "error"},
		{"internal", `{"replica": "broken"}`, "500", "internal error, see the log of the service", "error"},
	} {
		for _, op := range []subjects.LogOp{subjects.LogTail, subjects.LogGet, subjects.LogOpen} {
			if op == subjects.LogGet && strings.Contains(c.body, "window") {
				continue
			}
			in := b.inbox(b.nc.NewInbox())
			b.publish(b.subject(op), in.subject, c.body)
			msgs, end := in.all()
			if len(msgs) != 1 {
				t.Errorf("%s %s: %d messages: %q", c.name, op, len(msgs), text(msgs))
				continue
			}
			m := msgs[0]
			said := strings.TrimSuffix(string(m.Data), "\n")
			if !strings.Contains(said, c.want) || strings.Contains(said, "\n") || len(said) > 1100 {
				t.Errorf("%s %s: got %q, want %q in it", c.name, op, said, c.want)
			}
			if got := m.Header.Get(subjects.HeaderServiceErrorCode); got != c.code || m.Header.Get(subjects.HeaderServiceError) != said {
				t.Errorf("%s %s: got %v, want code %s and the text", c.name, op, m.Header, c.code)
			}
			if got := end.Header.Get(subjects.HeaderLogEnd); got != c.end {
				t.Errorf("%s %s: the end is %q, want %q", c.name, op, got, c.end)
			}
			if err := in.sub.Unsubscribe(); err != nil {
				t.Error(err)
			}
		}
	}
	b.idle(source)
}

// Nobody may have the service write into a subject that is no inbox.
func TestReplySubject(t *testing.T) {
	t.Parallel()
	b := newBench(t, some("a"))
	elsewhere := b.inbox("orders.>")
	for _, reply := range []string{"orders.new", "_INBOXES.x", "_INBOX", "_INBOX.*", "_INBOX.>", "flyte.apps.events.shop.production.checkout.created"} {
		b.publish(b.subject(subjects.LogTail), reply, "")
	}
	if err := b.nc.Publish(b.subject(subjects.LogTail), nil); err != nil {
		t.Fatal(err)
	}
	b.eventually("all are counted", func() error {
		if n := b.metric("appbridge_log_requests_total"); n != 7 {
			return fmt.Errorf("%v of 7", n)
		}
		return nil
	})
	select {
	case msg := <-elsewhere.msgs:
		t.Errorf("got %q on %s", msg.Data, msg.Subject)
	default:
	}
}

func TestGet(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a", "b"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		return errors.Join(
			out.Lines(ctx, "a", []logsvc.Line{line(1, "a1"), line(4, "a4"), {Text: []byte("a without a time")}}, false, ""),
			out.Lines(ctx, "b", []logsvc.Line{line(2, "b2"), line(3, "b3"), line(5, "b5")}, false, ""),
		)
	}}
	b := newBench(t, source)
	for _, c := range []struct{ body, want string }{
		{"", "a a1\nb b2\nb b3\na a4\na a without a time\nb b5\n"},
		{`{"format": "raw", "include": "^b"}`, "b2\nb3\nb5\n"},
		{`{"include": "nothing"}`, "# appbridge: no lines\n"},
	} {
		msg, err := b.nc.Request(b.subject(subjects.LogGet), []byte(c.body), patience)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(msg.Data); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.body, got, c.want)
		}
		if got := msg.Header.Get(subjects.HeaderLogReplicas); got != "a,b" {
			t.Errorf("the replicas are %q", got)
		}
	}
}

// A get is the newest lines that fit into a message of the server.
func TestGetTooMuch(t *testing.T) {
	t.Parallel()
	const total = 2_000 // long lines, so that a get has them in time on a busy machine
	for _, format := range []string{"text", "raw", "json", "proto"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			source := &written{replicas: []string{"a"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
				var lines []logsvc.Line
				for i := range total {
					lines = append(lines, line(i/100, fmt.Sprintf("line %06d %s", i, strings.Repeat("x", 1000))))
				}
				for some := range slices.Chunk(lines, 100) {
					if err := out.Lines(ctx, "a", some, false, ""); err != nil {
						return err
					}
				}
				return nil
			}}
			b := newBench(t, source)
			msg, err := b.nc.Request(b.subject(subjects.LogGet), []byte(`{"format": "`+format+`"}`), patience)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(msg.Data, fmt.Appendf(nil, "line %06d", total-1)) || bytes.Contains(msg.Data, []byte("line 000000")) || len(msg.Data) < 700_000 {
				t.Errorf("%d bytes, beginning with %.80q", len(msg.Data), msg.Data)
			}
			kept, dropped := 0, 0
			if _, err := fmt.Sscan(msg.Header.Get(subjects.HeaderLogLines)+" "+msg.Header.Get(subjects.HeaderLogDropped), &kept, &dropped); err != nil || kept+dropped != total {
				t.Errorf("%d kept, %d dropped, %v", kept, dropped, err)
			}
			if got := bytes.Count(msg.Data, []byte("line 0")); got != kept {
				t.Errorf("%d lines in it, it says %d", got, kept)
			}
		})
	}
}
