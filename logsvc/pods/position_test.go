package pods_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// logService is the log service of a place, and the connection of its readers.
type logService struct {
	t  *testing.T
	nc *nats.Conn
}

func (p *place) service(t *testing.T) *logService {
	t.Helper()
	s := suite.NATS(t, nil)
	p.serve(t, s, p.kubernetes())
	return &logService{t: t, nc: connectTo(t, s)}
}

func connectTo(t *testing.T, s *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(suite.Patience))
	check(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// serve runs a log service until stop is called.
func (p *place) serve(t *testing.T, s *server.Server, k *pods.Source) (stop func()) {
	t.Helper()
	nc := connectTo(t, s)
	service, err := logsvc.New(logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 10, InboxPrefix: "_INBOX", Version: "1.0.0"},
		k, nc, nc, zaptest.NewLogger(t), prometheus.NewRegistry())
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		check(t, <-done)
	})
	t.Cleanup(stop)
	soon(t, "the service listens", func() error {
		_, err := nc.Request("$SRV.PING."+logsvc.ServiceName, nil, time.Second)
		return err
	})
	return stop
}

// options are those of a request.
type options map[string]any

// reading is a stream of raw lines, as a reader gets it.
type reading struct {
	*logService
	msgs  chan *nats.Msg
	got   []*nats.Msg // with lines, or a position
	notes []string    // but those that name the replicas
	over  bool
}

// tail asks for a stream with positions.
func (s *logService) tail(id subjects.AppID, o options) *reading {
	s.t.Helper()
	o["positions"] = true
	return s.ask(id, o)
}

func (s *logService) ask(id subjects.AppID, o options) *reading {
	s.t.Helper()
	names, err := subjects.New(subjects.DefaultPrefix)
	check(s.t, err)
	subject, err := names.Logs(subjects.LogTail, id)
	check(s.t, err)
	o["format"] = "raw"
	body, err := json.Marshal(o)
	check(s.t, err)
	r := &reading{logService: s, msgs: make(chan *nats.Msg, 10_000)}
	inbox := s.nc.NewInbox()
	sub, err := s.nc.ChanSubscribe(inbox, r.msgs)
	check(s.t, err)
	s.t.Cleanup(func() { _ = sub.Unsubscribe() })
	check(s.t, s.nc.PublishRequest(subject, inbox, body))
	return r
}

// next takes a message.
func (r *reading) next() {
	r.t.Helper()
	select {
	case m := <-r.msgs:
		note := m.Header.Get(subjects.HeaderLogNote)
		switch {
		case m.Header.Get(subjects.HeaderLogEnd) != "":
			r.over = true
		case m.Header.Get(subjects.HeaderServiceError) != "":
			r.t.Fatalf("refused: %s", m.Data)
		case note == "":
			r.got = append(r.got, m)
		case note != string(subjects.LogNoteReplicas):
			r.notes = append(r.notes, strings.TrimPrefix(string(m.Data), subjects.LogNotePrefix))
		}
	case <-time.After(suite.Patience):
		r.t.Fatalf("nothing comes after %d messages, the last lines are %q, notes %q", len(r.got), short(linesOf(r.got)), r.notes)
	}
}

// until reads until there are as many lines, and until all of them have a position.
func (r *reading) until(n int) {
	r.t.Helper()
	for len(linesOf(r.got)) < n {
		r.next()
	}
}

// all reads to the end.
func (r *reading) all() []string {
	r.t.Helper()
	for !r.over {
		r.next()
	}
	return linesOf(r.got)
}

func (r *reading) stop() {
	r.t.Helper()
	for len(r.got) == 0 && !r.over {
		r.next()
	}
	if r.over {
		return
	}
	names, err := subjects.New(subjects.DefaultPrefix)
	check(r.t, err)
	subject, err := names.LogsStop("shop", r.got[0].Header.Get(subjects.HeaderLogStream))
	check(r.t, err)
	check(r.t, r.nc.Publish(subject, nil))
	r.all()
}

func linesOf(msgs []*nats.Msg) (lines []string) {
	for _, m := range msgs {
		for line := range strings.Lines(string(m.Data)) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

func positionOf(m *nats.Msg) string { return m.Header.Get(subjects.HeaderLogPosition) }

// TestPositions cuts a stream after each of its messages, and resumes it there: no line is lost or
// repeated, whatever happens to the log in between.
func TestPositions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.service(t)
	pad := strings.Repeat(".", 200) // so that there are many messages
	number := func(from, to int) (lines []string) {
		for i := from; i < to; i++ {
			lines = append(lines, fmt.Sprint(i, pad))
		}
		return lines
	}
	at := func(second int, pod *testenv.Pod, lines ...string) []string {
		pod.WriteAt(noon.Add(time.Duration(second)*time.Second), lines...)
		return lines
	}
	const wanted = "[02468][.]"
	for name, test := range map[string]struct {
		options options
		before  func(pod *testenv.Pod) // writes lines that the reader does not get
		first   func(pod *testenv.Pod) []string
		then    func(pod *testenv.Pod) []string
		// holds is how many of the last lines the log holds in the end; 0: all.
		holds int
		note  string // with the first lines; without the positions that the log does not hold
	}{
		"numbers": {
			first: func(pod *testenv.Pod) []string { pod.Write(number(0, 700)...); return number(0, 700) },
			then:  func(pod *testenv.Pod) []string { pod.Write(number(700, 900)...); return number(700, 900) },
		},
		"identical lines of one time": {
			first: func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 700)...) },
			then:  func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 300)...) },
		},
		"a clock that steps back": {
			first: func(pod *testenv.Pod) (lines []string) {
				for i := range 400 {
					lines = append(lines, at(i-30*(i/100), pod, pad)...)
				}
				return lines
			},
			then: func(pod *testenv.Pod) (lines []string) {
				for i := range 300 {
					lines = append(lines, at(290+i-60*(i/90), pod, pad)...)
				}
				return lines
			},
		},
		"a rotation": {
			first: func(pod *testenv.Pod) []string { pod.Write(number(0, 300)...); return number(0, 300) },
			then: func(pod *testenv.Pod) []string {
				pod.Rotate()
				pod.Write(number(300, 600)...)
				return number(300, 600)
			},
			holds: 300, note: rotatedAway,
		},
		"a restart": {
			first: func(pod *testenv.Pod) []string { pod.Write(number(0, 300)...); return number(0, 300) },
			then: func(pod *testenv.Pod) []string {
				pod.Write(number(300, 400)...)
				check(t, pod.Restart(t.Context()))
				pod.Write(number(400, 600)...)
				return number(300, 600)
			},
			note: "started again",
		},
		"two restarts": {
			first: func(pod *testenv.Pod) []string { pod.Write(number(0, 300)...); return number(0, 300) },
			then: func(pod *testenv.Pod) []string {
				check(t, pod.Restart(t.Context()))
				pod.Write(number(300, 400)...)
				soon(t, "it follows the second instance", following(pod))
				check(t, pod.Restart(t.Context()))
				pod.Write(number(400, 500)...)
				return number(300, 500)
			},
			holds: 200, note: "started again",
		},
		"tail 0": {
			options: options{"tail": 0},
			before:  func(pod *testenv.Pod) { at(0, pod, slices.Repeat([]string{pad}, 5)...) },
			then:    func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 300)...) },
		},
		"tail 3": {
			options: options{"tail": 3},
			before:  func(pod *testenv.Pod) { at(0, pod, slices.Repeat([]string{pad}, 5)...) },
			first:   func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 3)...) },
			then:    func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 300)...) },
		},
		"tail 400": {
			options: options{"tail": 400},
			before:  func(pod *testenv.Pod) { at(-1, pod, slices.Repeat([]string{pad}, 500)...) },
			first:   func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 400)...) },
			then:    func(pod *testenv.Pod) []string { return at(0, pod, slices.Repeat([]string{pad}, 300)...) },
		},
		"an empty log": {
			then: func(pod *testenv.Pod) []string { pod.Write(number(0, 300)...); return number(0, 300) },
		},
		"a filter": {
			options: options{"include": wanted},
			first:   func(pod *testenv.Pod) []string { pod.Write(number(0, 700)...); return number(0, 700) },
			then:    func(pod *testenv.Pod) []string { pod.Write(number(700, 900)...); return number(700, 900) },
		},
		"a filter that nothing passes": {
			options: options{"exclude": "[.]"},
			first:   func(pod *testenv.Pod) []string { pod.Write(number(0, 700)...); return number(0, 700) },
			then:    func(pod *testenv.Pod) []string { pod.Write("end"); return []string{"end"} },
		},
	} {
		for form, of := range map[string]testenv.LogForm{"containerd": testenv.Containerd, "CRI-O": testenv.CRIO} {
			t.Run(name+" "+form, func(t *testing.T) {
				passes := func(lines []string) []string {
					return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
						return test.options["include"] != nil && strings.ContainsAny(line[strings.Index(line, ".")-1:], "13579") ||
							test.options["exclude"] != nil && strings.Contains(line, ".")
					})
				}
				a := p.newApp(strings.ToLower(strings.NewReplacer(" ", "-", "CRI-O", "crio").Replace(name + "-" + form)))
				pod := a.run("00001", func(o *testenv.PodOptions) { o.Log = of })
				if test.before != nil {
					test.before(pod)
				}
				var lines []string
				if test.first != nil {
					lines = passes(test.first(pod))
				}
				request := func(o options) options {
					for k, v := range test.options {
						if _, given := o[k]; !given && (k != "tail" || o["resume"] == nil) {
							o[k] = v
						}
					}
					return o
				}
				r := s.tail(a.id, request(options{"follow": true}))
				r.until(len(lines))
				soon(t, "it follows", following(pod))
				for len(r.got) == 0 || positionOf(r.got[len(r.got)-1]) == "" {
					r.next()
				}
				lines = append(lines, passes(test.then(pod))...)
				r.until(len(lines))
				r.stop()
				if got := linesOf(r.got); !slices.Equal(got, lines) {
					t.Fatalf("got %s, want %s, notes %q", short(got), short(lines), r.notes)
				}
				t.Logf("%d messages", len(r.got))
				for i, m := range r.got {
					position := positionOf(m)
					if position == "" || len(position) > subjects.MaxLogPositionBytes {
						t.Fatalf("message %d has the position %q", i, position)
					}
					rest := lines[len(linesOf(r.got[:i+1])):]
					again := s.tail(a.id, request(options{"follow": false, "resume": options{pod.Name(): position}}))
					got := again.all()
					if test.holds > 0 && len(rest) >= test.holds {
						missing := func(note string) bool { return strings.Contains(note, "lines may be missing") }
						if !slices.Equal(got, lines[len(lines)-test.holds:]) || !slices.ContainsFunc(again.notes, missing) {
							t.Errorf("after message %d: got %s, notes %q", i, short(got), again.notes)
						}
						continue
					}
					if !slices.Equal(got, rest) {
						t.Fatalf("after message %d, %s: got %s, want %s", i, position, short(got), short(rest))
					}
					if slices.ContainsFunc(again.notes, func(note string) bool { return test.note == "" || !strings.Contains(note, test.note) }) {
						t.Errorf("after message %d: got notes %q", i, again.notes)
					}
				}
			})
		}
	}
}

// last returns the last position of a replica.
func (r *reading) last(pod *testenv.Pod) string {
	r.t.Helper()
	for {
		for _, m := range slices.Backward(r.got) {
			if m.Header.Get(subjects.HeaderLogReplica) == pod.Name() {
				return positionOf(m)
			}
		}
		r.next()
	}
}

// of returns the lines of a replica.
func (r *reading) of(pod *testenv.Pod) []string {
	return linesOf(slices.DeleteFunc(slices.Clone(r.got), func(m *nats.Msg) bool {
		return m.Header.Get(subjects.HeaderLogReplica) != pod.Name()
	}))
}

// TestPositionsOfReplicas resumes a stream whose replicas have changed meanwhile.
func TestPositionsOfReplicas(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.service(t)
	a := p.newApp("replicas")
	stays, goes, silent := a.run("00001"), a.run("00001"), a.run("00001")
	waits := a.run("00001", func(o *testenv.PodOptions) { o.Waiting = true })
	for _, pod := range []*testenv.Pod{stays, goes, silent} {
		pod.Write("one", "two")
	}
	r := s.tail(a.id, options{"follow": true, "tail": 1})
	r.until(3)
	positions := options{}
	for _, pod := range []*testenv.Pod{stays, goes, waits} {
		positions[pod.Name()] = r.last(pod)
	}
	positions[silent.Name()] = "" // as if its messages had been lost
	r.stop()

	stays.Write("three")
	check(t, goes.Delete(t.Context()))
	check(t, waits.Recover(t.Context()))
	waits.Write("one", "two")
	comes := a.run("00002")
	comes.Write("one", "two")
	r = s.tail(a.id, options{"follow": true, "tail": 1, "resume": positions})
	r.until(6)
	stays.Write("four")
	r.until(7)
	for pod, want := range map[*testenv.Pod][]string{
		stays: {"three", "four"}, waits: {"one", "two"}, silent: {"two"}, comes: {"one", "two"}, goes: nil,
	} {
		if got := r.of(pod); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", pod.Name(), got, want)
		}
	}
	want := []string{"replica " + goes.Name() + ": gone since the interruption; the last lines may be missing\n"}
	if !slices.Equal(r.notes, want) {
		t.Errorf("got notes %q, want %q", r.notes, want)
	}
	r.stop()

	const place = "AAAAAAAAAAA"
	for _, bad := range []string{"yesterday.0", place + ".AAAA.0", place + "A.0", place + "." + strings.Repeat("=", 76) + ".0"} {
		_, err := p.kubernetes().Open(t.Context(), logsvc.Query{App: a.id, Resume: map[string]logsvc.Position{"pod-a": {Place: strings.TrimSuffix(bad, ".0")}}})
		refused(t, err, subjects.CodeInvalidArgument, fmt.Sprintf("resume: replica %q: %s: want the value of a Flyte-Log-Position", "pod-a", kservice.Quote(bad)))
	}
}

// collected is what the handler of a client gets.
type collected struct {
	mu    sync.Mutex
	lines map[string][]string
	notes []string
}

func (c *collected) take(m *client.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.Kind == client.Lines:
		for line := range strings.Lines(string(m.Body)) {
			c.lines[m.Replica] = append(c.lines[m.Replica], strings.TrimSuffix(line, "\n"))
		}
	case m.Kind == client.Note && m.Note != subjects.LogNoteReplicas:
		c.notes = append(c.notes, string(m.Body))
	}
	return nil
}

func (c *collected) want(t *testing.T, pod *testenv.Pod, want ...string) {
	t.Helper()
	soon(t, "lines of "+pod.Name(), func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		got := c.lines[pod.Name()]
		switch {
		case slices.Equal(got, want):
			return nil
		case len(got) >= len(want):
			t.Fatalf("%s: got %q, want %q, notes %q", pod.Name(), got, want, c.notes)
		}
		return fmt.Errorf("got %q, want %q, notes %q", got, want, c.notes)
	})
}

// TestFollowReplicasThatEnded: a client goes on at another service. One replica has ended before that, and
// for another one there is no slot when the client asks for the first time.
func TestFollowReplicasThatEnded(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := suite.NATS(t, nil)
	first := p.kubernetes()
	stop := p.serve(t, s, first)
	a, other := p.newApp("ended"), p.newApp("other")
	stays, ends := a.run("00001"), a.run("00001")
	for _, pod := range []*testenv.Pod{stays, ends, other.run("00001")} {
		pod.Write("one", "two")
	}
	c := &collected{lines: map[string][]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	nc := connectTo(t, s)
	go func() {
		_, err := client.Follow(ctx, nc, client.Request{App: a.id, Follow: new(true)}, c.take)
		done <- err
	}()
	c.want(t, stays, "one", "two")
	c.want(t, ends, "one", "two")
	check(t, ends.Finish(t.Context(), corev1.PodSucceeded))
	soon(t, "it is read to its end", func() error {
		if active, _ := first.PodStreams(); active != 1 {
			return fmt.Errorf("%d replicas are read", active)
		}
		return nil
	})
	stays.Write("three")
	c.want(t, stays, "one", "two", "three")
	stop()
	stays.Write("four")
	read := make(chan struct{}, 100)
	ends.Observe(func(e testenv.RequestEvent) {
		if e.Step == testenv.RequestEnded {
			read <- struct{}{}
		}
	})
	k := p.kubernetes(func(c *pods.Config) { c.MaxPodStreams = 2 })
	taken, err := k.Open(t.Context(), logsvc.Query{App: other.id, Tail: -1})
	check(t, err)
	p.serve(t, s, k)
	soon(t, "the client waits for a slot", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.notes) == 0 || !strings.Contains(c.notes[len(c.notes)-1], "max-pod-streams") {
			return fmt.Errorf("notes %q", c.notes)
		}
		return nil
	})
	taken.Close()
	<-read
	c.want(t, stays, "one", "two", "three", "four")
	soon(t, "it follows", following(stays))
	stays.Write("five")
	c.want(t, stays, "one", "two", "three", "four", "five")
	c.want(t, ends, "one", "two")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPositionsUnasked: a reader that does not ask for positions, as older ones, gets none and no message
// without lines, also where it goes on by time.
func TestPositionsUnasked(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.service(t)
	a := p.newApp("unasked")
	pod := a.run("00001")
	pod.WriteAt(noon, "one")
	check(t, pod.Restart(t.Context()))
	pod.WriteAt(noon, "two", "three")
	for _, test := range []struct {
		options options
		want    []string
	}{
		{options{"follow": true, "tail": 0}, []string{"end"}},
		{options{"follow": true, "exclude": "t"}, []string{"end", "end"}},
		{options{"follow": true, "since_time": noon.Add(-time.Minute), "timestamps": true}, []string{"2026-11-26T12:00:00.000000000Z two", "2026-11-26T12:00:00.000000000Z three", "end", "end", "end"}},
		{options{"follow": false, "since_time": noon.Add(-time.Minute), "timestamps": true, "previous": true}, []string{"2026-11-26T12:00:00.000000000Z one"}},
	} {
		r := s.ask(a.id, test.options)
		if test.options["follow"] == true {
			soon(t, "it follows", following(pod))
			pod.Write("end")
		}
		r.until(len(test.want))
		for i, line := range linesOf(r.got) {
			if !strings.HasSuffix(line, test.want[i]) {
				t.Errorf("%v: got %q, want %q", test.options, line, test.want[i])
			}
		}
		r.stop()
		for _, m := range r.got {
			if positionOf(m) != "" || len(m.Data) == 0 {
				t.Errorf("%v: got %q with headers %v", test.options, m.Data, m.Header)
			}
		}
		if len(linesOf(r.got)) != len(test.want) {
			t.Errorf("%v: got %q, want %q", test.options, linesOf(r.got), test.want)
		}
	}
}
