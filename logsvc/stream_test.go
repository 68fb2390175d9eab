package logsvc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func maxStreams(n int) func(*logsvc.Config) {
	return func(c *logsvc.Config) { c.MaxStreams = n }
}

// The slots are taken before the first message; beyond them there is 429 at
// once; and whatever way a reader leaves by, its slot comes back within seconds.
func TestLimit(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a"}, run: forever}
	b := newBench(t, source, maxStreams(3))
	leaves := dial(t, b.server.ClientURL())
	away := &bench{t: t, nc: leaves, names: b.names}

	first, second := b.tail(""), b.tail("")
	third := away.tail("")
	for _, in := range []*inbox{first, second, third} {
		in.next()
	}
	fourth := b.tail(`{"end": "empty"}`)
	msgs, end := fourth.all()
	if got := msgs[0].Header.Get(subjects.HeaderServiceErrorCode); got != "429" {
		t.Errorf("got %v", msgs[0].Header)
	}
	if got, want := string(msgs[0].Data), "max-log-streams: 3 of 3 log requests are taken, try again later\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if end.Header.Get(subjects.HeaderLogEnd) != "limit" || end.Header.Get(subjects.HeaderStatus) != "204" {
		t.Errorf("the end is %v", end.Header)
	}

	if err := first.sub.Unsubscribe(); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	leaves.Close() // a killed client
	b.eventually("the slots come back", func() error {
		if n := b.metric("appbridge_log_streams"); n != 1 {
			return fmt.Errorf("%v are taken", n)
		}
		return nil
	})
	again := b.tail("")
	again.next()
	if source.taken.Load() != 2 {
		t.Errorf("%d streams of the source are open", source.taken.Load())
	}
}

// 10,000 requests whose askers left before they were answered leave nothing
// behind: neither a slot, nor a stream of the source, nor a goroutine.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	all, wave := 10_000, 2500
	if testing.Short() {
		all, wave = 1000, 500
	}
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, q logsvc.Query, out logsvc.Sink) error {
		if err := out.Lines(ctx, "a", []logsvc.Line{line(0, "hello")}, true, ""); err != nil {
			return err
		}
		return forever(ctx, q, out)
	}}
	b := newBench(t, source, maxStreams(wave))
	for sent := range all {
		op := subjects.LogTail
		if sent >= all-wave && sent%100 == 0 {
			op = subjects.LogOpen // waits ten seconds for somebody to listen
		}
		if err := b.nc.PublishRequest(b.subject(op), b.nc.NewInbox(), nil); err != nil {
			t.Fatal(err)
		}
		if (sent+1)%wave == 0 {
			suite.Progress(t, patience, "requests of the wave are open", int64(sent+1), source.opened.Load)
			b.idle(source)
		}
	}
	b.eventually("every request is counted", func() error {
		if n := b.metric("appbridge_log_requests_total"); int(n) != all {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	b.eventually("the server hears of every end", func() error {
		if n := b.server.NumSubscriptions(); n > 100 {
			return fmt.Errorf("%d subscriptions are left", n)
		}
		return nil
	})
}

// The stream of an open begins when somebody listens, and nothing of it is lost.
func TestOpen(t *testing.T) {
	t.Parallel()
	source := some("a")
	b := newBench(t, source)
	msg, err := b.nc.Request(b.subject(subjects.LogOpen), []byte(`{"format":"raw"}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	project, id, err := b.names.ParseLogsOut(string(msg.Data))
	if err != nil || project != "shop" || len(id) < 20 || msg.Header.Get(subjects.HeaderLogStream) != id {
		t.Fatalf("got %q %v, %v", msg.Data, msg.Header, err)
	}
	in := b.inbox(string(msg.Data))
	msgs, end := in.all()
	if got, want := text(msgs), "# appbridge: replicas: a\none\ntwo\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if end.Header.Get(subjects.HeaderLogLines) != "2" {
		t.Errorf("the end is %v", end.Header)
	}
	b.idle(source)
}

func TestStop(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a"}, run: forever}
	b := newBench(t, source)
	in := b.tail("")
	first := in.next()
	stop, err := b.names.LogsStop("shop", first.Header.Get(subjects.HeaderLogStream))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := b.nc.Request(stop, nil, patience)
	if err != nil || string(answer.Data) != "stopped\n" {
		t.Errorf("got %v, %v", answer, err)
	}
	if _, end := in.all(); end.Header.Get(subjects.HeaderLogEnd) != "stopped" {
		t.Errorf("the end is %v", end.Header)
	}
	if _, err := b.nc.Request(stop, nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a stream that has ended answers: %v", err)
	}
	b.idle(source)
}

func TestEnds(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a"}, run: forever}
	b := newBench(t, source)
	limited, open := b.tail(`{"max_duration": "300ms"}`), b.tail("")
	if _, end := limited.all(); end.Header.Get(subjects.HeaderLogEnd) != "max_duration" {
		t.Errorf("the end is %v", end.Header)
	}
	open.next()
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if _, end := open.all(); end.Header.Get(subjects.HeaderLogEnd) != "shutdown" {
		t.Errorf("the end is %v", end.Header)
	}
	if _, err := b.nc.Request(b.subject(subjects.LogGet), nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a stopped service answers: %v", err)
	}
}

// `nats micro` shows the service, with the streams there are and may be.
func TestMicro(t *testing.T) {
	t.Parallel()
	b := newBench(t, &written{replicas: []string{"a"}, run: forever}, maxStreams(7))
	b.tail("").next()
	ask := func(verb string, into any) {
		t.Helper()
		msg, err := b.nc.Request("$SRV."+verb+"."+logsvc.ServiceName, nil, patience)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(msg.Data, into); err != nil {
			t.Fatal(err)
		}
	}
	var info micro.Info
	ask("INFO", &info)
	var endpoints []string
	for _, e := range info.Endpoints {
		endpoints = append(endpoints, e.Name+" "+e.Subject)
	}
	if got, want := strings.Join(endpoints, ", "), "get flyte.apps.logs.get.*.*.*, tail flyte.apps.logs.tail.*.*.*, open flyte.apps.logs.open.*.*.*"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if info.Version != "1.2.3" {
		t.Errorf("the version is %s", info.Version)
	}
	var stats micro.Stats
	ask("STATS", &stats)
	var data logsvc.Stats
	if err := json.Unmarshal(stats.Endpoints[0].Data, &data); err != nil {
		t.Fatal(err)
	}
	if data.ActiveStreams != 1 || data.MaxStreams != 7 {
		t.Errorf("got %+v", data)
	}
}

// numbered is a source of n numbered lines that exist already.
func numbered(n int) *written {
	return &written{replicas: []string{"a"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		lines := make([]logsvc.Line, 0, 100)
		for i := range n {
			lines = append(lines, line(0, fmt.Sprintf("%08d %s", i, strings.Repeat(".", 100))))
			if len(lines) == cap(lines) || i == n-1 {
				if err := out.Lines(ctx, "a", lines, false, ""); err != nil {
					return err
				}
				lines = lines[:0]
			}
		}
		return nil
	}}
}

// checkNumbered looks for lines that are missing, twice or out of order.
func checkNumbered(t *testing.T, body []byte, n int) {
	t.Helper()
	i := 0
	for l := range bytes.Lines(body) {
		if bytes.HasPrefix(l, []byte(subjects.LogNotePrefix)) {
			continue
		}
		if got, err := strconv.Atoi(string(l[:8])); err != nil || got != i {
			t.Fatalf("line %d is %.40q", i, l)
		}
		i++
	}
	if i != n {
		t.Errorf("%d lines, want %d", i, n)
	}
}

// A reader that acknowledges never has more than its window open, gets
// everything whatever becomes of its connection or the server, and each message
// keeps its number.
func TestWindow(t *testing.T) {
	t.Parallel()
	const n, window = 30_000, 8
	source := numbered(n)
	b := newBench(t, source)
	in := b.tail(fmt.Sprintf(`{"format": "raw", "window": %d}`, window))
	var body []byte
	seen := map[int]*nats.Msg{}
	done, open, restarted := 0, 0, false
	var end *nats.Msg
	for end == nil {
		msg := in.next()
		if msg.Header.Get(subjects.HeaderLogEnd) != "" {
			end = msg
			break
		}
		seq, err := strconv.Atoi(msg.Header.Get(subjects.HeaderLogSeq))
		if err != nil {
			t.Fatal(err)
		}
		if seq > done+window {
			t.Fatalf("message %d comes with %d acknowledged", seq, done)
		}
		switch {
		case seq <= done: // its acknowledgement was lost
			if err := b.nc.Publish(msg.Reply, nil); err != nil {
				t.Fatal(err)
			}
		case seen[seq] == nil:
			seen[seq] = msg
			open++
		}
		if done >= 20 && !restarted {
			if open < window {
				continue
			}
			// With the window full nothing comes before what is open has come again,
			// or its acknowledgements have.
			restarted = true
			port := b.server.Addr().String()
			b.server.Shutdown()
			b.server.WaitForShutdown()
			_, number, _ := strings.Cut(port, ":")
			p, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			b.server = suite.NATS(t, &server.Options{Port: p})
			continue
		}
		// Half of the window at a time, so that it is full in between.
		if open < window/2 && seq*32<<10 < n*109 {
			continue
		}
		for ; seen[done+1] != nil; done++ {
			m := seen[done+1]
			if !bytes.HasPrefix(m.Data, []byte(subjects.LogNotePrefix)) {
				body = append(body, m.Data...)
			}
			if err := b.nc.Publish(m.Reply, nil); err != nil {
				b.eventually("acknowledge", func() error { return b.nc.Publish(m.Reply, nil) })
			}
			open--
		}
	}
	checkNumbered(t, body, n)
	if got, want := end.Header.Get(subjects.HeaderLogLines), strconv.Itoa(n); got != want {
		t.Errorf("the end says %s lines, want %s", got, want)
	}
	if b.metric("appbridge_log_messages_resent_total") == 0 {
		t.Error("nothing was sent again")
	}
}

// Without acknowledgements a stream goes at a pace that the stock client keeps
// up with.
func TestPace(t *testing.T) {
	t.Parallel()
	const n = 60_000 // 6.5 MB
	b := newBench(t, numbered(n))
	began := time.Now()
	msgs, _ := b.tail(`{"format": "raw"}`).all()
	checkNumbered(t, []byte(text(msgs)), n)
	if d := time.Since(began); d < time.Second {
		t.Errorf("6.5 MB in %s", d)
	}
}

// Live lines never wait: when the reader is behind the oldest go, and the stream says
// how many and where. What existed already is not among them.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	// A call has many live lines, so that they are written long before the reader counts as stalled.
	const existing, live, perCall, window = 2000, 200_000, 1000, 4
	wrote := make(chan error, 1)
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, q logsvc.Query, out logsvc.Sink) error {
		next := 0
		write := func(n int, live bool) error {
			lines := make([]logsvc.Line, n)
			for i := range lines {
				lines[i] = line(0, fmt.Sprintf("%08d %s", next, strings.Repeat(".", 100)))
				next++
			}
			return out.Lines(ctx, "a", lines, live, "")
		}
		for next < existing {
			if err := write(1, false); err != nil {
				return err
			}
		}
		for next < existing+live {
			if err := write(perCall, true); err != nil {
				wrote <- err
				return err
			}
		}
		close(wrote)
		return nil
	}}
	b := newBench(t, source)
	in := b.tail(fmt.Sprintf(`{"window": %d}`, window))
	var got []*nats.Msg
	lines := 0
	receive := func() {
		m := in.nextNew()
		for l := range bytes.Lines(m.Data) {
			if l[0] != '#' {
				lines++
			}
		}
		got = append(got, m)
	}
	ack := func(m *nats.Msg) {
		if err := b.nc.Publish(m.Reply, nil); err != nil {
			t.Error(err)
		}
	}
	for len(got) < window || lines < existing {
		if len(got) >= window {
			ack(got[len(got)-window])
		}
		receive()
	}
	select {
	case err := <-wrote:
		if err != nil {
			t.Fatalf("the stream ended before the reader read on: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the source waits for the reader")
	}
	for _, m := range got[len(got)-window:] {
		ack(m)
	}
	for {
		msg := in.next()
		if msg.Header.Get(subjects.HeaderLogEnd) != "" {
			break
		}
		if msg.Header.Get(subjects.HeaderLogSeq) == fmt.Sprint(len(got)+1) {
			got = append(got, msg)
		}
		ack(msg)
	}
	next, dropped := 0, 0
	for _, m := range got {
		if m.Header.Get(subjects.HeaderLogNote) == string(subjects.LogNoteDropped) {
			n, err := strconv.Atoi(m.Header.Get(subjects.HeaderLogDropped))
			if err != nil || next < existing {
				t.Fatalf("%q after line %d: %v", m.Data, next, err)
			}
			if want := fmt.Sprintf("# appbridge: replica a: %d lines dropped here, because this reader is too slow\n", n); string(m.Data) != want {
				t.Errorf("got %q, want %q", m.Data, want)
			}
			next, dropped = next+n, dropped+n
			continue
		}
		for l := range bytes.Lines(m.Data) {
			if l[0] == '#' {
				continue
			}
			if n, err := strconv.Atoi(string(l[:8])); err != nil || n != next {
				t.Fatalf("line %d is %.40q", next, l)
			}
			next++
		}
	}
	if next != existing+live || dropped < live/2 {
		t.Errorf("%d lines accounted for, %d of them dropped", next, dropped)
	}
	if n := b.metric("appbridge_log_lines_dropped_total"); int(n) != dropped {
		t.Errorf("%v are counted", n)
	}
}

// A frozen reader harms no other stream.
func TestFrozenReader(t *testing.T) {
	t.Parallel()
	var lines atomic.Int64
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, q logsvc.Query, out logsvc.Sink) error {
		if q.Tail == 1 {
			return numbered(20_000).run(ctx, q, out)
		}
		for ctx.Err() == nil { // a flood
			if err := out.Lines(ctx, "a", []logsvc.Line{line(0, strings.Repeat("x", 10_000))}, true, ""); err != nil {
				return err
			}
			lines.Add(1)
		}
		return ctx.Err()
	}}
	b := newBench(t, source)
	frozen := b.tail(`{"window": 2}`)
	frozen.next()
	b.eventually("the flood does not wait for it", func() error {
		if n := lines.Load(); n < 10_000 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	msgs, end := b.tail(`{"tail": 1, "format": "raw"}`).all()
	checkNumbered(t, []byte(text(msgs)), 20_000)
	if end.Header.Get(subjects.HeaderLogEnd) != "eof" {
		t.Errorf("the end is %v", end.Header)
	}
}

// Bytes that are not UTF-8 pass, or are replaced where a format cannot hold them.
func TestBytes(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		return out.Lines(ctx, "a", []logsvc.Line{{Text: []byte("a\xffb\x00c")}, {}, {Text: []byte("cut"), Cut: 99}}, false, "")
	}}
	b := newBench(t, source)
	for body, want := range map[string]string{
		`{"format": "raw"}`:  "a\xffb\x00c\n\ncut [appbridge: 99 bytes cut]\n",
		`{"format": "text"}`: "a\xffb\x00c\n\ncut [appbridge: 99 bytes cut]\n",
	} {
		msgs, _ := b.tail(body).all()
		if got := text(msgs[1:]); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	msgs, _ := b.tail(`{"format": "json"}`).all()
	if got := text(msgs); !strings.Contains(got, `"message":"a�b\u0000c"`) {
		t.Errorf("got %s", got)
	}
	if n := b.metric("appbridge_log_lines_cut_total"); n != 3 {
		t.Errorf("%v cut lines are counted", n)
	}
}

// A reader in another account cannot be watched: its stream says when it ends.
func TestOtherAccount(t *testing.T) {
	t.Parallel()
	here, there := server.NewAccount("here"), server.NewAccount("there")
	s := suite.NATS(t, &server.Options{
		Accounts: []*server.Account{here, there},
		Users: []*server.User{
			{Username: "service", Password: "s", Account: here},
			{Username: "reader", Password: "r", Account: there},
		},
	})
	of := func(a *server.Account) *server.Account {
		t.Helper()
		found, err := s.LookupAccount(a.Name)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if err := of(here).AddServiceExportWithResponse("flyte.apps.logs.>", server.Streamed, nil); err != nil {
		t.Fatal(err)
	}
	if err := of(here).AddServiceExport("$SRV.>", nil); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"flyte.apps.logs.>", "$SRV.>"} {
		if err := of(there).AddServiceImport(of(here), subject, subject); err != nil {
			t.Fatal(err)
		}
	}
	source := some("a")
	b := serveOn(t, s, dial(t, s.ClientURL(), nats.UserInfo("service", "s")), dial(t, s.ClientURL(), nats.UserInfo("reader", "r")), source)
	msgs, end := b.tail(`{"max_duration": "2h"}`).all()
	if got := text(msgs); !strings.Contains(got, "# appbridge: the reader is in another account") || !strings.HasSuffix(got, "\none\ntwo\n") {
		t.Errorf("got %q", got)
	}
	if got := msgs[0].Header.Get(subjects.HeaderLogLimit); got != "1h0m0s" {
		t.Errorf("the first message says %v", msgs[0].Header)
	}
	if end.Header.Get(subjects.HeaderLogEnd) != "eof" {
		t.Errorf("the end is %v", end.Header)
	}
	opened := b.inbox(b.nc.NewInbox())
	b.publish(b.subject(subjects.LogOpen), opened.subject, "")
	if got, _ := opened.all(); !strings.Contains(text(got), "open: a reader in another account cannot listen to the stream, want tail") {
		t.Errorf("got %q", text(got))
	}
	refused, _ := b.tail(`{"window": 3}`).all()
	if got := text(refused); !strings.Contains(got, "window: 3: a reader in another account cannot acknowledge") {
		t.Errorf("got %q", got)
	}
}
