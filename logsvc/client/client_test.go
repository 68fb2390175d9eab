package client

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestTail(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) {
		v.replicas("pod-a,pod-b")
		v.lines(2, "one\ntwo\n")
		v.lines(2, "one\ntwo\n") // again
		v.lines(4, "four\n")     // before its turn
		v.lines(3, "three\n")
		v.message(5, "", subjects.HeaderLogNote, string(subjects.LogNoteDropped), subjects.HeaderLogDropped, "7")
		v.end(subjects.LogEndEOF, 4)
	})
	c := newCollector()
	var dropped int64
	end, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, Tail: new(5), Format: subjects.LogFormatRaw}, func(m *Message) error {
		dropped += m.Dropped
		return c.take(m)
	}, quick())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := end, (End{Reason: subjects.LogEndEOF, Lines: 4}); got != want {
		t.Errorf("got end %+v, want %+v", got, want)
	}
	want := []string{
		"replicas [pod-a pod-b]: # appbridge: replicas: pod-a,pod-b\n", "pod-a: one\ntwo\n", "pod-a: three\n", "pod-a: four\n",
		"dropped []: ", "end eof 4",
	}
	if diff := cmp.Diff(c.all(), want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
	if dropped != 7 {
		t.Errorf("got %d dropped lines, want 7", dropped)
	}
	acks := map[uint64]bool{}
	for len(acks) < 5 {
		select {
		case seq := <-v.acks:
			acks[seq] = true
		case <-time.After(patience):
			t.Fatalf("got acknowledgements of %v, want all five", acks)
		}
	}
	if diff := cmp.Diff(v.requests, []wireRequest{{Tail: 5.0, Format: subjects.LogFormatRaw, Window: DefaultWindow}}); diff != "" {
		t.Errorf("request: got - want +:\n%s", diff)
	}
}

func TestRequestBody(t *testing.T) {
	r := Request{
		App: testApp(), Replica: "pod", Container: "c", Tail: new(0), Since: 90 * time.Second, SinceTime: time.Date(2026, 11, 21, 8, 51, 7, 0, time.UTC),
		Follow: new(false), Previous: true, Timestamps: true, Include: "a", Exclude: "b", Format: subjects.LogFormatJSON, MaxDuration: time.Hour, Window: 3,
	}
	got, err := r.body()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"replica":"pod","container":"c","tail":0,"since":"1m30s","since_time":"2026-11-21T08:51:07Z","follow":false,"previous":true,` +
		`"timestamps":true,"include":"a","exclude":"b","format":"json","window":3,"max_duration":"1h0m0s"}`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	all := Request{Tail: new(-1), SinceStart: true, Window: 3}
	if got, err := all.body(); string(got) != `{"tail":"all","since":"start","window":3}` || err != nil {
		t.Errorf("got %s, %v for all", got, err)
	}
	if got, err := (Request{Window: DefaultWindow}).body(); string(got) != `{"window":16}` || err != nil {
		t.Errorf("got %s, %v for nothing", got, err)
	}
}

func TestRefused(t *testing.T) {
	s := suite.NATS(t, nil)
	nc := connect(t, s)
	for _, test := range []struct {
		name string
		req  Request
		want string
	}{
		{"window", Request{App: testApp(), Window: MaxWindow + 1}, "window 1025: want 1 to 1024 messages"},
		{"timeout", Request{App: testApp(), Timeout: -1}, "timeout -1ns"},
		{"app", Request{App: subjects.AppID{Project: "p"}}, "empty"},
		{"prefix", Request{App: testApp(), Prefix: "a..b"}, "a..b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Tail(t.Context(), nc, test.req, newCollector().take)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestErrorsAndEnds(t *testing.T) {
	notFound := &Error{Code: subjects.CodeNotFound, Text: "no app shop/production/search"}
	for _, test := range []struct {
		name   string
		script func(*service)
		want   error
		text   string
	}{
		{"refused", func(v *service) {
			v.fail(subjects.CodeNotFound, "no app shop/production/search")
			v.end(subjects.LogEndError, 0)
		}, notFound, "no app shop/production/search (404 NotFound)"},
		{"fails later", func(v *service) {
			v.lines(1, "a\n")
			v.message(2, "away", subjects.HeaderServiceError, "away", subjects.HeaderServiceErrorCode, "502")
			v.end(subjects.LogEndError, 1)
		}, &Error{Code: subjects.CodeUnavailable, Text: "away"}, "away (502 Unavailable)"},
		{"unknown code", func(v *service) {
			v.message(0, "x", subjects.HeaderServiceError, "teapot", subjects.HeaderServiceErrorCode, "418")
			v.end(subjects.LogEndError, 0)
		}, &Error{Text: "teapot"}, "teapot"},
		{"stopped", func(v *service) { v.end(subjects.LogEndStopped, 0) }, nil, ""},
		{"max duration", func(v *service) { v.end(subjects.LogEndMaxDuration, 0) }, nil, ""},
		{"stalled", func(v *service) { v.end(subjects.LogEndStalled, 0) }, &EndError{Reason: subjects.LogEndStalled}, "the log service ended the stream: what it sent was not acknowledged in time"},
		{"shutdown", func(v *service) { v.end(subjects.LogEndShutdown, 0) }, &EndError{Reason: subjects.LogEndShutdown}, ""},
		{"limit", func(v *service) { v.end(subjects.LogEndLimit, 0) }, &EndError{Reason: subjects.LogEndLimit}, ""},
		{"error", func(v *service) { v.end(subjects.LogEndError, 0) }, &EndError{Reason: subjects.LogEndError}, ""},
		{"another reason", func(v *service) { v.end("tired", 0) }, &EndError{Reason: "tired"}, `the log service ended the stream: "tired"`},
		{"bad number", func(v *service) { v.message(0, "x", subjects.HeaderLogSeq, "-1") }, nil, `Flyte-Log-Seq of the log service is "-1": want a number from 1 on`},
		{"bad count", func(v *service) { v.message(0, "x", subjects.HeaderLogDropped, "many") }, nil, `Flyte-Log-Dropped of the log service is "many": want a number from 0 on`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := suite.NATS(t, nil)
			serve(t, s, test.script)
			_, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, newCollector().take, quick())
			if test.text != "" && (err == nil || err.Error() != test.text) {
				t.Errorf("got error %v, want %q", err, test.text)
			}
			if test.want == nil && test.text == "" && err != nil {
				t.Errorf("got %v, want none", err)
			}
			if test.want != nil {
				if diff := cmp.Diff(err, test.want); diff != "" {
					t.Errorf("got - want +:\n%s", diff)
				}
			}
		})
	}
}

// TestErrorWithoutEnd: an error ends the stream also when no end follows.
func TestErrorWithoutEnd(t *testing.T) {
	s := suite.NATS(t, nil)
	serve(t, s, func(v *service) { v.fail(subjects.CodeNotFound, "no app shop/production/search") })
	timing := quick()
	timing.end = 100 * time.Millisecond
	_, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, newCollector().take, timing)
	if diff := cmp.Diff(err, error(&Error{Code: subjects.CodeNotFound, Text: "no app shop/production/search"})); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}

// TestWindow: nothing is acknowledged before its handler has returned, and what
// is sent again meanwhile is acknowledged only once it was handled.
func TestWindow(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) {
		for seq := 1; seq <= 3; seq++ {
			v.lines(seq, "x\n")
		}
	})
	entered, leave := make(chan struct{}, 16), make(chan struct{})
	done := start(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, Window: 3}, func(*Message) error {
		entered <- struct{}{}
		<-leave
		return nil
	}, quick())
	<-entered
	for range 5 { // an impatient service
		for seq := 1; seq <= 3; seq++ {
			v.lines(seq, "x\n")
		}
	}
	if err := v.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	select {
	case seq := <-v.acks:
		t.Fatalf("got an acknowledgement of %d before the handler returned", seq)
	case <-time.After(50 * time.Millisecond):
	}
	leave <- struct{}{}
	v.wantAcks(1)
	<-entered
	v.lines(1, "x\n") // the acknowledgement did not arrive
	v.wantAck(1)
	close(leave)
	// Some of what the service sent again may come only now.
	v.wantAck(2)
	v.wantAck(3)
	v.end(subjects.LogEndEOF, 3)
	if o := wait(t, done); o.err != nil {
		t.Error(o.err)
	}
	if got, want := len(entered), 2; got != want {
		t.Errorf("got %d more calls of the handler, want %d: the third message and the end", got, want)
	}
}

// TestSlowHandler: the service hears of a reader that has its hands full, as when
// somebody reads a page.
func TestSlowHandler(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) { v.lines(1, "x\n"); v.lines(2, "y\n") })
	timing := quick()
	timing.keepAlive = 20 * time.Millisecond
	leave := make(chan struct{})
	done := start(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, func(m *Message) error {
		if string(m.Body) == "y\n" {
			<-leave
		}
		return nil
	}, timing)
	v.wantAck(1) // behind some of 0, if the first message took long
	v.wantAcks(1, 1)
	close(leave)
	for {
		seq := uint64(0)
		select {
		case seq = <-v.acks:
		case <-time.After(patience):
			t.Fatal("the second message is not acknowledged")
		}
		if seq == 2 {
			break
		}
	}
	v.end(subjects.LogEndEOF, 2)
	if o := wait(t, done); o.err != nil {
		t.Error(o.err)
	}
}

// TestSlowFirstMessage: there is no acknowledgement yet that could be repeated.
func TestSlowFirstMessage(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) { v.lines(1, "x\n"); v.end(subjects.LogEndEOF, 1) })
	timing := quick()
	timing.keepAlive = 20 * time.Millisecond
	leave := make(chan struct{})
	done := start(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, func(m *Message) error {
		if m.Kind == Lines {
			<-leave
		}
		return nil
	}, timing)
	v.wantAcks(0, 0)
	close(leave)
	if o := wait(t, done); o.err != nil {
		t.Error(o.err)
	}
}

// TestPacedSlowHandler: whatever arrives while the handler is at work waits for it.
func TestPacedSlowHandler(t *testing.T) {
	const n = 5000
	s := suite.NATS(t, nil)
	sent := make(chan struct{})
	serve(t, s, func(v *service) {
		for seq := 1; seq <= n; seq++ {
			v.lines(seq, strconv.Itoa(seq)+"\n")
		}
		v.message(n+1, "", subjects.HeaderLogEnd, "eof", subjects.HeaderLogLines, strconv.Itoa(n))
		if err := v.nc.Flush(); err != nil {
			v.t.Error(err)
		}
		close(sent)
	})
	got := 0
	end, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, Window: Paced}, func(m *Message) error {
		<-sent
		if m.Kind == Lines {
			if got++; string(m.Body) != strconv.Itoa(got)+"\n" {
				t.Errorf("got %q, want %d", m.Body, got)
			}
		}
		return nil
	}, quick())
	if err != nil || got != n || end.Reason != subjects.LogEndEOF {
		t.Errorf("got %d messages, %+v and %v; want %d", got, end, err, n)
	}
}

// TestPacedBound: of a paced stream so much is kept and no more, and what is missing is found at once.
func TestPacedBound(t *testing.T) {
	b := newInbox(Paced)
	body := make([]byte, 1<<20)
	for seq := 1; seq <= 70; seq++ {
		m := nats.NewMsg("x")
		m.Data = body
		m.Header.Set(subjects.HeaderLogSeq, strconv.Itoa(seq))
		b.take(m, time.Now())
	}
	for range pacedBytes >> 20 {
		it := <-b.queue
		b.handled(&it)
	}
	if err := b.gapError(); err == nil || b.bytes != 0 || len(b.queue) > 0 {
		t.Errorf("got %v, %d bytes and %d messages left; want number 65 missing", err, b.bytes, len(b.queue))
	}
}

// TestPaced: a stream without a window, and without reply subjects as one from
// another account.
func TestPaced(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) {
		for seq := 1; seq <= 500; seq++ {
			v.message(0, "x\n", subjects.HeaderLogSeq, strconv.Itoa(seq))
		}
		v.end(subjects.LogEndEOF, 500)
	})
	lines := 0
	_, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, Window: Paced}, func(m *Message) error {
		lines += strings.Count(string(m.Body), "\n")
		return nil
	}, quick())
	if err != nil || lines != 500 {
		t.Errorf("got %d lines and %v", lines, err)
	}
	if diff := cmp.Diff(v.requests, []wireRequest{{}}); diff != "" {
		t.Errorf("request: got - want +:\n%s", diff)
	}
	if len(v.acks) > 0 {
		t.Errorf("got %d acknowledgements", len(v.acks))
	}
}

func TestInterrupted(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) { v.lines(1, "x\n") })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newCollector()
	done := start(ctx, connect(t, s), Request{App: testApp(), Timeout: patience}, c.take, quick())
	c.wait(t)
	cancel()
	if o := wait(t, done); !errors.Is(o.err, context.Canceled) {
		t.Errorf("got %v", o.err)
	}
	select {
	case <-v.stopped:
	case <-time.After(patience):
		t.Error("the service was not told to stop")
	}
}

func TestHandlerFails(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) { v.lines(1, "x\n") })
	full := errors.New("disk full")
	_, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, func(*Message) error { return full }, quick())
	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	select {
	case <-v.stopped:
	case <-time.After(patience):
		t.Error("the service was not told to stop")
	}
	select {
	case seq := <-v.acks:
		t.Errorf("got an acknowledgement of %d, which was not handled", seq)
	default:
	}
}

// TestManyMessages: a whole log through the window, every message once.
func TestManyMessages(t *testing.T) {
	const messages, window = 2000, 16
	body := strings.Repeat(strings.Repeat("x", 119)+"\n", 270)
	s := suite.NATS(t, nil)
	v := serve(t, s, func(*service) {})
	nc := connect(t, s)
	var bytes, calls int
	more := 0
	done := start(t.Context(), nc, Request{App: testApp(), Timeout: patience, Window: window}, func(m *Message) error {
		if m.Kind == Lines {
			calls++
			bytes += len(m.Body)
		}
		if m.More {
			more++
		}
		return nil
	}, quick())
	deadline := time.After(patience)
	for asked := false; !asked; {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatal("no request")
		}
		v.mu.Lock()
		asked = v.reply != ""
		v.mu.Unlock()
	}
	began := time.Now()
	for seq := 1; seq <= messages; seq++ {
		v.lines(seq, body)
		if seq > window {
			v.wantAcks(uint64(seq - window))
		}
	}
	v.end(subjects.LogEndEOF, messages*270)
	if o := wait(t, done); o.err != nil {
		t.Fatal(o.err)
	}
	if calls != messages || bytes != messages*len(body) {
		t.Errorf("got %d messages with %d bytes, want %d with %d", calls, bytes, messages, messages*len(body))
	}
	t.Logf("%.2f million lines a second, %d messages with others behind them", messages*270/time.Since(began).Seconds()/1e6, more)
}

func FuzzParse(f *testing.F) {
	f.Add("1", "", "", "", []byte("x\n"))
	f.Add("0", "eof", "12", "a,b", []byte{})
	f.Add("", "", "-1", "", []byte{})
	f.Fuzz(func(t *testing.T, seq, end, lines, replicas string, body []byte) {
		m := nats.NewMsg("x")
		m.Data = body
		for name, value := range map[string]string{
			subjects.HeaderLogSeq: seq, subjects.HeaderLogEnd: end, subjects.HeaderLogLines: lines, subjects.HeaderLogDropped: lines, subjects.HeaderLogReplicas: replicas,
		} {
			if value != "" {
				m.Header.Set(name, value)
			}
		}
		it, err := parse(m)
		if err != nil {
			return
		}
		if it.Dropped < 0 || it.End.Lines < 0 || !slices.Equal(it.Body, body) || (it.Kind == Last) != (end != "") {
			t.Errorf("got %+v", it)
		}
	})
}
