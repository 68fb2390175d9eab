package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func quickFollow() timing {
	t := quick()
	t.resumes = true
	t.quiet, t.gone = 60*time.Millisecond, 150*time.Millisecond // another stream is cheap
	return t
}

func quickPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(5*time.Millisecond), backoff.WithMaxInterval(50*time.Millisecond), backoff.WithMaxElapsedTime(patience))
}

// startFollow runs follow in the background.
func startFollow(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		end, err := follow(ctx, nc, req, handle, t, quickPause())
		done <- outcome{end, err}
	}()
	return done
}

// text is what a collector got, without what did not change the output.
func (c *collector) text() []string {
	var got []string
	for _, entry := range c.all() {
		head, body, _ := strings.Cut(entry, ": ")
		if body == "" {
			if strings.HasPrefix(entry, "end ") {
				got = append(got, entry)
			}
			continue
		}
		if strings.Contains(body, subjects.LogNotePrefix) {
			got = append(got, entry)
			continue
		}
		for line := range strings.Lines(body) {
			got = append(got, head+": "+strings.TrimSuffix(line, "\n"))
		}
	}
	return got
}

// lines are those of all replicas.
func (c *collector) lines() []string {
	return slices.DeleteFunc(c.text(), func(s string) bool { return strings.Contains(s, "# appbridge") || strings.HasPrefix(s, "end ") })
}

// until waits until it has n lines.
func (c *collector) until(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(patience)
	for len(c.lines()) < n {
		select {
		case <-c.seen:
		case <-deadline:
			t.Fatalf("got %d lines, want %d: %q", len(c.lines()), n, c.text())
		}
	}
}

// replica is a replica of the log service.
type replica struct {
	nc   *nats.Conn
	stop func() // as for a SIGTERM; returns when it has ended
}

// startReplica serves the source until it is stopped.
func startReplica(t *testing.T, url string, source logsvc.LogStreamer) *replica {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 10, InboxPrefix: "_INBOX", Version: "1.0.0"}
	service, err := logsvc.New(cfg, source, nc, nc, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	r := &replica{nc: nc}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		nc.Close()
		<-closed
	}
	t.Cleanup(r.stop)
	awaitService(t, nc)
	return r
}

func awaitService(t *testing.T, nc *nats.Conn) {
	t.Helper()
	deadline := time.After(patience)
	for {
		var info micro.Info
		msg, err := nc.Request("$SRV.INFO."+logsvc.ServiceName, nil, time.Second)
		if err == nil && json.Unmarshal(msg.Data, &info) == nil && len(info.Endpoints) == 3 && nc.Flush() == nil {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("the service does not start")
		}
	}
}

// TestFollowRollout stops one replica of the service after the other while two pods
// write: every line comes once, in order, without a note.
func TestFollowRollout(t *testing.T) {
	for name, req := range map[string]Request{
		"all":     {},
		"include": {Include: "[02468]$"},
		"paced":   {Window: Paced},
	} {
		t.Run(name, func(t *testing.T) {
			s := suite.NATS(t, nil)
			source := newPods("pod-a", "pod-b")
			serving := startReplica(t, s.ClientURL(), source)
			c := newCollector()
			req.App, req.Follow, req.Timeout = testApp(), new(true), 20*time.Second // a replica that stops may not answer
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			timing := quickFollow()
			timing.silentRetry = time.Minute // it may meet a replica that is about to stop
			done := startFollow(ctx, connect(t, s), req, c.take, timing)
			c.wait(t)
			var want []string
			write := func(n int) {
				for range n {
					for _, pod := range []string{"pod-a", "pod-b"} {
						text := fmt.Sprintf("line %d", len(want))
						source.write(pod, text)
						want = append(want, pod+": "+text)
					}
				}
			}
			for round := range 4 {
				write(50)
				if round == 1 {
					c.until(t, 100) // now with everything handed on
				}
				next := startReplica(t, s.ClientURL(), source)
				write(20)
				serving.stop()
				write(20)
				serving = next
			}
			write(1)
			ofPod := func(lines []string, pod string) []string {
				return slices.DeleteFunc(slices.Clone(lines), func(s string) bool {
					return !strings.HasPrefix(s, pod) || req.Include != "" && strings.ContainsAny(s[len(s)-1:], "13579")
				})
			}
			wanted := slices.Concat(ofPod(want, "pod-a"), ofPod(want, "pod-b"))
			c.until(t, len(wanted))
			cancel()
			wait(t, done)
			got := c.lines()
			if diff := cmp.Diff(slices.Concat(ofPod(got, "pod-a"), ofPod(got, "pod-b")), wanted); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
			for _, text := range c.text() {
				if strings.Contains(text, "# appbridge") && !strings.Contains(text, "replicas: pod-a, pod-b") {
					t.Errorf("got %q", text)
				}
			}
		})
	}
}

// TestFollowReconnect: the reader's connection is cut until the service gives up, and
// meanwhile a container is started again, a pod goes and another comes.
func TestFollowReconnect(t *testing.T) {
	s := suite.NATS(t, nil)
	p, err := network.NewProxy(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	source := newPods("pod-a", "pod-b", "quiet")
	source.write("quiet", "q0")
	source.write("pod-a", "a0")
	startReplica(t, s.ClientURL(), source)
	closed := make(chan struct{})
	nc, err := nats.Connect("nats://"+p.Addr(), nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { nc.Close(); <-closed }()
	c := newCollector()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := startFollow(ctx, nc, Request{App: testApp(), Timeout: patience, Follow: new(true), Tail: new(5)}, c.take, quickFollow())
	c.until(t, 2)
	source.write("pod-a", "a1")
	source.write("pod-b", "b1")
	c.until(t, 4)
	if err := p.Cut(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(patience)
	for source.streams() > 0 {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatal("the service does not notice that its reader is gone")
		}
	}
	source.write("pod-a", "a2")
	source.restart("pod-a")
	source.write("pod-a", "a3")
	source.change(func() {
		delete(source.logs, "pod-b")
		source.logs["pod-c"] = &podLog{}
	})
	source.write("pod-c", "c1")
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	c.until(t, 7)
	source.write("pod-a", "a4")
	source.write("quiet", "q1")
	c.until(t, 9)
	cancel()
	wait(t, done)
	got := c.text()
	want := []string{
		"replicas [pod-a pod-b quiet]: # appbridge: replicas: pod-a, pod-b, quiet\n", "pod-a: a0", "quiet: q0", "pod-a: a1", "pod-b: b1",
		"pod-a: a2", "replica []: # appbridge: replica pod-b: it is gone since the interruption; its last lines may be missing\n",
		"replicas [pod-a pod-c quiet]: # appbridge: replicas: pod-a, pod-c, quiet\n", "pod-a: a3", "pod-c: c1", "pod-a: a4", "quiet: q1",
	}
	// Of one moment, replicas come in any order.
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}

// TestFollowAsks: the requests after an interruption, among them those for a replica of which nothing
// came before it, and what is taken of the answers.
func TestFollowAsks(t *testing.T) {
	now := time.Now().UTC()
	line := func(ago time.Duration, text string) string {
		at := stampAt(now.Add(-ago))
		return at + " " + text + "\n"
	}
	s := suite.NATS(t, nil)
	requests := 0
	v := serve(t, s, func(v *service) {
		requests++
		switch requests {
		case 1: // pod-b has written nothing that was sent
			v.replicas("pod-a,pod-b,pod-c")
			v.lines(2, line(time.Hour, "a0")+line(time.Second, "a1"))
			v.end(subjects.LogEndShutdown, 0)
		case 2: // the last lines of each
			v.replicas("pod-a,pod-b,pod-c")
			v.lines(2, line(time.Second, "a1"))
			v.message(3, line(time.Minute, "b0")+line(-time.Minute, "b1"), subjects.HeaderLogReplica, "pod-b")
			v.end(subjects.LogEndEOF, 0)
		case 3:
			v.fail(subjects.CodeFailedPrecondition, "nothing has restarted")
			v.end(subjects.LogEndError, 0)
		case 4:
			v.replicas("pod-a,pod-b,pod-c")
			v.lines(2, line(time.Second, "a1"))
			v.message(3, line(time.Minute, "b0")+line(-time.Minute, "b1"), subjects.HeaderLogReplica, "pod-b")
			v.message(6, line(5*time.Second, "c before the first request")+line(-time.Minute, "c1"), subjects.HeaderLogReplica, "pod-c")
			v.message(4, "", subjects.HeaderLogNote, string(subjects.LogNoteDropped), subjects.HeaderLogDropped, "3", subjects.HeaderLogReplica, "pod-a")
			v.lines(5, line(-time.Minute, "a2"))
			v.end(subjects.LogEndEOF, 0)
		}
	})
	c := newCollector()
	end, err := follow(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, Follow: new(true), Tail: new(7), Include: "x", MaxDuration: time.Hour}, c.take, quickFollow(), quickPause())
	if err != nil || end != (End{Reason: subjects.LogEndEOF, Lines: 6}) {
		t.Errorf("got %+v, %v", end, err)
	}
	want := []string{
		"replicas [pod-a pod-b pod-c]: # appbridge: replicas: pod-a,pod-b,pod-c\n", "pod-a: a0", "pod-a: a1", "pod-b: b0", "pod-b: b1", "pod-a: a2", "pod-c: c1", "end eof 6",
	}
	if diff := cmp.Diff(c.text(), want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var asked []string
	for _, r := range v.requests {
		if left, err := time.ParseDuration(r.MaxDuration); err != nil || left > time.Hour || left < 59*time.Minute {
			t.Errorf("got max_duration %s", r.MaxDuration)
		}
		if !r.Timestamps || r.Format != subjects.LogFormatRaw || r.Include != "x" {
			t.Errorf("got %+v", r)
		}
		tail := "-"
		if r.Tail != nil {
			tail = fmt.Sprint(r.Tail)
		}
		// Of pod-a from ten seconds before its last line.
		asked = append(asked, fmt.Sprintf("tail %s, previous %v, follow %v, since %v", tail, r.Previous, *r.Follow, r.SinceTime.Equal(now.Add(-11*time.Second))))
	}
	wantAsked := []string{"tail 7, previous false, follow true, since false", "tail 7, previous false, follow false, since false", "tail -, previous true, follow false, since true", "tail -, previous false, follow true, since true"}
	if diff := cmp.Diff(asked, wantAsked); diff != "" {
		t.Errorf("requests: got - want +:\n%s", diff)
	}
}

// TestFollowSinceStart: a resumed request asks since a time, and for nothing else.
func TestFollowSinceStart(t *testing.T) {
	s := suite.NATS(t, nil)
	requests := 0
	v := serve(t, s, func(v *service) {
		requests++
		v.replicas("pod-a")
		at := stampAt(time.Now().Add(time.Duration(requests) * time.Minute))
		v.lines(2, fmt.Sprintf("%s %d\n", at, requests))
		if requests == 1 {
			v.end(subjects.LogEndShutdown, 0)
		} else {
			v.end(subjects.LogEndEOF, 0)
		}
	})
	c := newCollector()
	if _, err := follow(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, SinceStart: true}, c.take, quickFollow(), quickPause()); err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, r := range v.requests {
		if start := r.Since == "start"; start != (i == 0) || start == (!r.SinceTime.IsZero()) {
			t.Errorf("request %d: got since %q, since_time %q", i+1, r.Since, r.SinceTime)
		}
	}
	if len(v.requests) < 3 {
		t.Errorf("%d requests", len(v.requests))
	}
}

// TestFollowEnds: what ends it, and what does not.
func TestFollowEnds(t *testing.T) {
	lines := func(v *service, n int) {
		for i := range n {
			v.lines(i+1, stamped(i, "line "+strconv.Itoa(i)))
		}
	}
	fail := func(code subjects.Code, text string) func(*service) {
		return func(v *service) { v.fail(code, text); v.end(subjects.LogEndError, 0) }
	}
	for _, test := range []struct {
		name string
		req  Request
		// script of each request; a request for the previous container is refused.
		script []func(*service)
		text   []string
		err    string
	}{
		{"end of the log", Request{}, []func(*service){func(v *service) { lines(v, 2); v.end(subjects.LogEndEOF, 0) }}, []string{"pod-a: line 0", "pod-a: line 1", "end eof 2"}, ""},
		{"stopped", Request{}, []func(*service){func(v *service) { lines(v, 1); v.end(subjects.LogEndStopped, 0) }}, []string{"pod-a: line 0", "end stopped 1"}, ""},
		{"refused", Request{}, []func(*service){fail(subjects.CodeUnavailable, "down")}, []string{"end error 0"}, "down (502 Unavailable)"},
		{"too many at first", Request{}, []func(*service){func(v *service) { v.fail(subjects.CodeResourceExhausted, "full"); v.end(subjects.LogEndLimit, 0) }}, []string{"end limit 0"}, "full (429 ResourceExhausted)"},
		{"format", Request{Format: subjects.LogFormatJSON}, nil, nil, `log request: format "json": want raw, the only one that can be resumed`},
		{"stalled, then an error, then full", Request{}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndStalled, 0) },
			func(v *service) {
				lines(v, 2)
				v.message(3, "x", subjects.HeaderServiceError, "Kubernetes is down", subjects.HeaderServiceErrorCode, "502")
				v.end(subjects.LogEndError, 0)
			},
			func(v *service) { v.fail(subjects.CodeResourceExhausted, "full"); v.end(subjects.LogEndLimit, 0) },
			func(v *service) { lines(v, 3); v.end(subjects.LogEndEOF, 0) },
		}, []string{
			"pod-a: line 0", "pod-a: line 1",
			"waiting []: # appbridge: the log stream was interrupted (full (429 ResourceExhausted)), trying to go on\n", "pod-a: line 2", "end eof 3",
		}, ""},
		{"a message is lost", Request{Window: Paced}, []func(*service){
			func(v *service) { lines(v, 1); v.lines(3, stamped(2, "line 2")); v.lines(4, stamped(3, "line 3")) },
			func(v *service) { lines(v, 4); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: line 0", "pod-a: line 1", "pod-a: line 2", "pod-a: line 3", "end eof 4"}, ""},
		{"the last line is gone", Request{}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndShutdown, 0) },
			func(v *service) { v.lines(1, stamped(900, "later")); v.end(subjects.LogEndEOF, 0) },
		}, []string{
			"pod-a: line 0", "replica []: # appbridge: replica pod-a: the log does not hold the last line before the interruption any more; lines may be missing here\n",
			"pod-a: later", "end eof 2",
		}, ""},
		{"the app is gone", Request{}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndShutdown, 0) },
			fail(subjects.CodeNotFound, "no app"),
		}, []string{"pod-a: line 0", "waiting []: # appbridge: the app or the replica is gone; its last lines may be missing\n", "end eof 1"}, ""},
		{"refused later", Request{}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndShutdown, 0) },
			fail(subjects.CodePermissionDenied, "not any more"),
		}, []string{"pod-a: line 0", "end error 1"}, "not any more (403 PermissionDenied)"},
		{"shutdown before anything", Request{}, []func(*service){
			func(v *service) { v.end(subjects.LogEndShutdown, 0) },
			func(v *service) { lines(v, 1); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: line 0", "end eof 1"}, ""},
		{"the service's own limit of time", Request{}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndMaxDuration, 0) },
			func(v *service) { lines(v, 2); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: line 0", "pod-a: line 1", "end eof 2"}, ""},
		{"the reader's limit of time", Request{MaxDuration: time.Millisecond}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndMaxDuration, 0) },
		}, []string{"pod-a: line 0", "end max_duration 1"}, ""},
		{"with the times", Request{Timestamps: true}, []func(*service){
			func(v *service) { lines(v, 1); v.end(subjects.LogEndShutdown, 0) },
			func(v *service) { lines(v, 2); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: " + strings.TrimSuffix(stamped(0, "line 0"), "\n"), "pod-a: " + strings.TrimSuffix(stamped(1, "line 1"), "\n"), "end eof 2"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := suite.NATS(t, nil)
			next := 0
			serve(t, s, func(v *service) {
				v.mu.Lock()
				previous := v.requests[len(v.requests)-1].Previous
				v.mu.Unlock()
				switch {
				case previous:
					v.fail(subjects.CodeFailedPrecondition, "nothing has restarted")
					v.end(subjects.LogEndError, 0)
				case next < len(test.script):
					next++
					test.script[next-1](v)
				default:
					t.Error("one request too many")
					v.end(subjects.LogEndStopped, 0)
				}
			})
			c := newCollector()
			test.req.App, test.req.Timeout = testApp(), patience
			_, err := follow(t.Context(), connect(t, s), test.req, c.take, quickFollow(), quickPause())
			if got := fmt.Sprint(err); got != test.err && (err != nil || test.err != "") {
				t.Errorf("got error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(c.text(), test.text); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
}

// steps is a clock that goes on whenever it is read.
type steps struct{ now time.Time }

func (c *steps) Now() time.Time {
	c.now = c.now.Add(20 * time.Millisecond)
	return c.now
}

// TestFollowGivesUp: nobody serves logs any more.
func TestFollowGivesUp(t *testing.T) {
	s := suite.NATS(t, nil)
	serve(t, s, func(v *service) {
		v.lines(1, stamped(0, "a"))
		v.mu.Lock()
		err := errors.Join(v.tailSub.Unsubscribe(), v.nc.Flush())
		v.mu.Unlock()
		if err != nil {
			v.t.Error(err)
		}
		v.end(subjects.LogEndShutdown, 1)
	})
	c := newCollector()
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(5*time.Millisecond), backoff.WithMaxInterval(10*time.Millisecond),
		backoff.WithMaxElapsedTime(100*time.Millisecond), backoff.WithClockProvider(&steps{time.Now()}))
	_, err := follow(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, c.take, quickFollow(), pause)
	if err == nil || !strings.Contains(err.Error(), "could not be resumed") || !strings.Contains(err.Error(), "nobody serves logs on flyte.apps.logs.tail.shop.production.search") {
		t.Errorf("got %v", err)
	}
	want := "waiting []: # appbridge: the log stream was interrupted (nobody serves logs on flyte.apps.logs.tail.shop.production.search), trying to go on\n"
	if !slices.Contains(c.text(), want) {
		t.Errorf("got %q, want %q in it", c.text(), want)
	}
}

// TestFollowStops: the handler's error, ctx and a closed connection end it at once.
func TestFollowStops(t *testing.T) {
	s := suite.NATS(t, nil)
	source := newPods("pod-a")
	source.write("pod-a", "a")
	startReplica(t, s.ClientURL(), source)
	full := errors.New("disk full")
	_, err := follow(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, func(m *Message) error {
		if m.Kind == Lines {
			return full
		}
		return nil
	}, quickFollow(), quickPause())
	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	nc := connect(t, s)
	c := newCollector()
	done := startFollow(t.Context(), nc, Request{App: testApp(), Timeout: patience, Follow: new(true)}, c.take, quickFollow())
	c.until(t, 1)
	nc.Close()
	if o := wait(t, done); !errors.Is(o.err, nats.ErrConnectionClosed) {
		t.Errorf("got %v, want %v", o.err, nats.ErrConnectionClosed)
	}
}
