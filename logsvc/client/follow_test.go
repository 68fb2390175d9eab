package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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
// meanwhile a pod goes and another comes.
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
		"pod-a: a2",
		"replicas [pod-a pod-c quiet]: # appbridge: replicas: pod-a, pod-c, quiet\n", "pod-a: a3", "pod-c: c1", "pod-a: a4", "quiet: q1",
	}
	// Of one moment, replicas come in any order.
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}

// log sends the lines of pod-a from the position of the request up to n.
func (v *service) log(n int) {
	v.mu.Lock()
	r := v.requests[len(v.requests)-1]
	v.mu.Unlock()
	from, _ := strconv.Atoi(r.Resume["pod-a"]) // 0 without
	v.replicas("pod-a")
	for i := from; i < n; i++ {
		v.position(i-from+2, fmt.Sprintf("line %d\n", i), "pod-a", strconv.Itoa(i+1))
	}
}

// position sends lines with a position.
func (v *service) position(seq int, body, replica, position string) {
	v.message(seq, body, subjects.HeaderLogReplica, replica, subjects.HeaderLogPosition, position)
}

// TestFollowAsks: the requests after an interruption have the positions of all that was handed on.
func TestFollowAsks(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) {
		v.mu.Lock()
		n := len(v.requests)
		v.mu.Unlock()
		switch n {
		case 1: // of pod-b nothing came
			v.replicas("pod-a,pod-b,pod-c")
			v.position(2, "a0\n", "pod-a", "A0")
			v.position(3, "", "pod-c", "C0")
			v.position(4, "a1\na2\n", "pod-a", "A2")
			v.end(subjects.LogEndShutdown, 0)
		case 2: // pod-a is gone, pod-d is new, and pod-e is newer
			v.replicas("pod-b,pod-c,pod-d,pod-e")
			v.position(2, "b0\n", "pod-b", "B0")
			v.position(3, "d0\n", "pod-d", "D0")
			v.end(subjects.LogEndShutdown, 0)
		case 3:
			v.replicas("pod-b,pod-c,pod-d,pod-e")
			v.end(subjects.LogEndEOF, 0)
		default:
			t.Error("one request too many")
		}
	})
	c := newCollector()
	req := Request{App: testApp(), Timeout: patience, Follow: new(true), Tail: new(7), Include: "x", MaxDuration: time.Hour}
	end, err := follow(t.Context(), connect(t, s), req, c.take, quickFollow(), quickPause())
	if err != nil || end != (End{Reason: subjects.LogEndEOF, Lines: 5}) {
		t.Errorf("got %+v, %v", end, err)
	}
	want := []string{
		"replicas [pod-a pod-b pod-c]: # appbridge: replicas: pod-a,pod-b,pod-c\n", "pod-a: a0", "pod-a: a1", "pod-a: a2",
		"replicas [pod-b pod-c pod-d pod-e]: # appbridge: replicas: pod-b,pod-c,pod-d,pod-e\n", "pod-b: b0", "pod-d: d0", "end eof 5",
	}
	if diff := cmp.Diff(c.text(), want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.requests {
		r := &v.requests[i]
		if left, err := time.ParseDuration(r.MaxDuration); err != nil || left > time.Hour || left < 59*time.Minute {
			t.Errorf("got max_duration %s", r.MaxDuration)
		}
		r.MaxDuration = ""
	}
	asked := wireRequest{Follow: new(true), Include: "x", Format: subjects.LogFormatRaw, Window: DefaultWindow, Positions: true, Tail: 7.0}
	again, last := asked, asked
	again.Resume = map[string]string{"pod-a": "A2", "pod-b": "", "pod-c": "C0"}
	last.Resume, last.Tail = map[string]string{"pod-b": "B0", "pod-c": "C0", "pod-d": "D0"}, nil
	if diff := cmp.Diff(v.requests, []wireRequest{asked, again, last}); diff != "" {
		t.Errorf("requests: got - want +:\n%s", diff)
	}
}

// TestFollowSinceStart: a stream without replicas is resumed with all that come.
func TestFollowSinceStart(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) {
		v.message(1, "", subjects.HeaderLogNote, string(subjects.LogNoteReplicas))
		v.mu.Lock()
		n := len(v.requests)
		v.mu.Unlock()
		v.end([]subjects.LogEnd{subjects.LogEndShutdown, subjects.LogEndEOF}[min(n-1, 1)], 0)
	})
	c := newCollector()
	if _, err := follow(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience, SinceStart: true}, c.take, quickFollow(), quickPause()); err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := wireRequest{Format: subjects.LogFormatRaw, Window: DefaultWindow, Positions: true, Since: "start"}
	again := asked
	again.Since, again.Resume = "", map[string]string{}
	if diff := cmp.Diff(v.requests, []wireRequest{asked, again}); diff != "" {
		t.Errorf("requests: got - want +:\n%s", diff)
	}
}

// TestFollowOldService: a service that does not know positions is asked for times, and one that does is
// asked for positions again.
func TestFollowOldService(t *testing.T) {
	const goesOn = "waiting []: # appbridge: the log service is an older one and goes on by time: lines may be repeated or missing\n"
	at := func(second int) string { return fmt.Sprintf("2026-11-21T08:51:%02d.000000000Z ", second) }
	now := time.Now()
	for _, timestamps := range []bool{false, true} {
		s := suite.NATS(t, nil)
		streams := 0
		old := true
		v := serve(t, s, func(v *service) {
			v.mu.Lock()
			r := v.requests[len(v.requests)-1]
			v.mu.Unlock()
			if old && r.Positions {
				v.fail(subjects.CodeInvalidArgument, `"positions": unknown option, want one of replica, tail`)
				v.end(subjects.LogEndError, 0)
				return
			}
			v.replicas("pod-a,pod-b")
			switch streams++; streams {
			case 1:
				v.lines(2, at(1)+"one\n"+at(7)+"two\n")
				v.message(3, at(5)+"b\n", subjects.HeaderLogReplica, "pod-b")
				v.end(subjects.LogEndShutdown, 0)
			case 2: // from the earlier of the last lines on
				v.lines(2, at(7)+"two\n"+at(8)+"three\n")
				old = false
				v.end(subjects.LogEndShutdown, 0)
			case 3:
				v.position(2, "three\n", "pod-a", "A3")
				v.position(3, "", "pod-b", "B1")
				v.end(subjects.LogEndShutdown, 0)
			case 4:
				v.position(2, "four\n", "pod-a", "A4")
				old = true
				v.end(subjects.LogEndShutdown, 0)
			default:
				v.lines(2, at(9)+"four\n"+at(10)+"five\n")
				v.end(subjects.LogEndEOF, 0)
			}
		})
		c := newCollector()
		req := Request{App: testApp(), Timeout: patience, Follow: new(true), Tail: new(2), Timestamps: timestamps}
		if _, err := follow(t.Context(), connect(t, s), req, c.take, quickFollow(), quickPause()); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"replicas [pod-a pod-b]: # appbridge: replicas: pod-a,pod-b\n", "pod-a: one", "pod-a: two", "pod-b: b", goesOn,
			"pod-a: two", "pod-a: three", "pod-a: three", "pod-a: four", "pod-a: four", "pod-a: five", "end eof 9",
		}
		got := c.text()
		if timestamps {
			for i := range got {
				got[i] = regexp.MustCompile(`2026\S* `).ReplaceAllString(got[i], "")
			}
			if !slices.Contains(c.text(), "pod-a: "+at(7)+"two") {
				t.Errorf("got %q without times", c.text())
			}
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("got - want +:\n%s", diff)
		}
		v.mu.Lock()
		var asked []string
		for _, r := range v.requests {
			since := "-"
			switch {
			case r.SinceTime.After(now.Add(-2 * heardMargin)):
				since = "now"
			case !r.SinceTime.IsZero():
				since = r.SinceTime.Format(":05")
			}
			asked = append(asked, fmt.Sprintf("positions %v, resume %v, times %v, tail %v, since %s", r.Positions, r.Resume, r.Timestamps, r.Tail, since))
		}
		v.mu.Unlock()
		positions := fmt.Sprintf("positions true, resume map[], times %v, ", timestamps)
		wantAsked := []string{
			positions + "tail 2, since -", "positions false, resume map[], times true, tail 2, since -",
			positions + "tail <nil>, since :05", "positions false, resume map[], times true, tail <nil>, since :05",
			positions + "tail <nil>, since :05",
			fmt.Sprintf("positions true, resume map[pod-a:A3 pod-b:B1], times %v, tail <nil>, since -", timestamps),
			fmt.Sprintf("positions true, resume map[pod-a:A4 pod-b:B1], times %v, tail <nil>, since -", timestamps),
			"positions false, resume map[], times true, tail <nil>, since now",
		}
		if diff := cmp.Diff(asked, wantAsked); diff != "" {
			t.Errorf("requests: got - want +:\n%s", diff)
		}
	}
}

// TestFollowEnds: what ends it, and what does not.
func TestFollowEnds(t *testing.T) {
	fail := func(code subjects.Code, text string) func(*service) {
		return func(v *service) { v.fail(code, text); v.end(subjects.LogEndError, 0) }
	}
	for _, test := range []struct {
		name string
		req  Request
		// script of each request
		script []func(*service)
		text   []string
		err    string
	}{
		{"end of the log", Request{}, []func(*service){func(v *service) { v.log(2); v.end(subjects.LogEndEOF, 0) }}, []string{"pod-a: line 0", "pod-a: line 1", "end eof 2"}, ""},
		{"stopped", Request{}, []func(*service){func(v *service) { v.log(1); v.end(subjects.LogEndStopped, 0) }}, []string{"pod-a: line 0", "end stopped 1"}, ""},
		{"refused", Request{}, []func(*service){fail(subjects.CodeUnavailable, "down")}, []string{"end error 0"}, "down (502 Unavailable)"},
		{"wrong", Request{}, []func(*service){fail(subjects.CodeInvalidArgument, "tail: -1"), fail(subjects.CodeInvalidArgument, "tail: -1")}, []string{"end error 0"}, "tail: -1 (400 InvalidArgument)"},
		{"too many at first", Request{}, []func(*service){func(v *service) { v.fail(subjects.CodeResourceExhausted, "full"); v.end(subjects.LogEndLimit, 0) }}, []string{"end limit 0"}, "full (429 ResourceExhausted)"},
		{"format", Request{Format: subjects.LogFormatJSON}, nil, nil, `log request: format "json": want raw, the only one that can be resumed`},
		{"stalled, then an error, then full", Request{}, []func(*service){
			func(v *service) { v.log(1); v.end(subjects.LogEndStalled, 0) },
			func(v *service) {
				v.log(2)
				v.message(3, "x", subjects.HeaderServiceError, "Kubernetes is down", subjects.HeaderServiceErrorCode, "502")
				v.end(subjects.LogEndError, 0)
			},
			func(v *service) { v.fail(subjects.CodeResourceExhausted, "full"); v.end(subjects.LogEndLimit, 0) },
			func(v *service) { v.log(3); v.end(subjects.LogEndEOF, 0) },
		}, []string{
			"pod-a: line 0", "pod-a: line 1",
			"waiting []: # appbridge: the log stream was interrupted (full (429 ResourceExhausted)), trying to go on\n", "pod-a: line 2", "end eof 3",
		}, ""},
		{"a message is lost", Request{Window: Paced}, []func(*service){
			func(v *service) {
				v.log(1)
				v.position(4, "line 2\n", "pod-a", "3")
				v.position(5, "line 3\n", "pod-a", "4")
			},
			func(v *service) { v.log(4); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: line 0", "pod-a: line 1", "pod-a: line 2", "pod-a: line 3", "end eof 4"}, ""},
		{"the app is gone", Request{}, []func(*service){
			func(v *service) { v.log(1); v.end(subjects.LogEndShutdown, 0) },
			fail(subjects.CodeNotFound, "no app"),
		}, []string{"pod-a: line 0", "waiting []: # appbridge: the app or the replica is gone; its last lines may be missing\n", "end eof 1"}, ""},
		{"refused later", Request{}, []func(*service){
			func(v *service) { v.log(1); v.end(subjects.LogEndShutdown, 0) },
			fail(subjects.CodePermissionDenied, "not any more"),
		}, []string{"pod-a: line 0", "end error 1"}, "not any more (403 PermissionDenied)"},
		{"shutdown before anything", Request{}, []func(*service){
			func(v *service) { v.end(subjects.LogEndShutdown, 0) },
			func(v *service) { v.log(1); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: line 0", "end eof 1"}, ""},
		{"the service's own limit of time", Request{}, []func(*service){
			func(v *service) { v.log(1); v.end(subjects.LogEndMaxDuration, 0) },
			func(v *service) { v.log(2); v.end(subjects.LogEndEOF, 0) },
		}, []string{"pod-a: line 0", "pod-a: line 1", "end eof 2"}, ""},
		{"the reader's limit of time", Request{MaxDuration: time.Millisecond}, []func(*service){
			func(v *service) { v.log(1); v.end(subjects.LogEndMaxDuration, 0) },
		}, []string{"pod-a: line 0", "end max_duration 1"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := suite.NATS(t, nil)
			next := 0
			serve(t, s, func(v *service) {
				if next == len(test.script) {
					t.Error("one request too many")
					v.end(subjects.LogEndStopped, 0)
					return
				}
				next++
				test.script[next-1](v)
			})
			c := newCollector()
			test.req.App, test.req.Timeout = testApp(), patience
			_, err := follow(t.Context(), connect(t, s), test.req, c.take, quickFollow(), quickPause())
			if got := fmt.Sprint(err); got != test.err && (err != nil || test.err != "") {
				t.Errorf("got error %v, want %q", err, test.err)
			}
			got := slices.DeleteFunc(c.text(), func(s string) bool { return strings.HasPrefix(s, "replicas ") })
			if diff := cmp.Diff(got, test.text); diff != "" {
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
		v.lines(1, "a\n")
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
