package logsvc

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

var checkout = subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"} //nolint:gochecknoglobals // a constant of these tests

// parsed parses the options of a request that arrived at some time.
func parsed(op subjects.LogOp, body string, arrived time.Time) (*logRequest, error) {
	fields, err := objectOf([]byte(body))
	if err != nil {
		return nil, err
	}
	r := newRequest(op, checkout, &request.Request{Arrived: arrived})
	return r, r.parse(fields)
}

func TestParseRequest(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, body string
		want       Query
	}{
		{"nothing", "", Query{Tail: 1000}},
		{"blank", " \n", Query{Tail: 1000}},
		{"tail", `{"tail": 0}`, Query{Tail: 0}},
		{"all", `{"tail": "all"}`, Query{Tail: -1}},
		{"a whole number in another form", `{"tail": 1.0}`, Query{Tail: 1}},
		{"with an exponent", `{"tail": 2e3}`, Query{Tail: 2000}},
		{"beyond any log", `{"tail": 1e30}`, Query{Tail: -1}},
		{"since start", `{"since": "start"}`, Query{Tail: -1}},
		{"since start and tail", `{"since": "start", "tail": 5}`, Query{Tail: 5}},
		{"since and all", `{"since": "10m", "tail": "all"}`, Query{Tail: -1, Age: 10 * time.Minute}},
		{"live", `{"source": "LIVE_ONLY"}`, Query{Tail: 1000}},
		{"live or persisted", `{"source": "LIVE_OR_PERSISTED"}`, Query{Tail: 1000}},
		{"since", `{"since": "10m"}`, Query{Tail: -1, Age: 10 * time.Minute}},
		{"since and tail", `{"since": "10m", "tail": 5}`, Query{Tail: 5, Age: 10 * time.Minute}},
		{"the last time", `{"since_time": "9999-12-31T23:59:59.999999999Z"}`, Query{Tail: -1, Since: time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)}},
		{"since_time", `{"since_time": "2026-11-21T08:00:00.5Z"}`, Query{Tail: -1, Since: time.Date(2026, 11, 21, 8, 0, 0, 5e8, time.UTC)}},
		{"follow", `{"follow": true}`, Query{Tail: 1000, Follow: FollowAlways}},
		{"no follow", `{"follow": false}`, Query{Tail: 1000, Follow: FollowNever}},
		{"replica", `{"replica": "r", "container": "c", "previous": true}`, Query{Tail: 1000, Replica: "r", Container: "c", Previous: true}},
		{"positions", `{"positions": true}`, Query{Tail: 1000, Positions: true}},
		{"resume", `{"resume": {"a": "x.y.12", "b": "z.0"}}`, Query{Tail: 1000, Resume: map[string]Position{"a": {Place: "x.y", Lines: 12}, "b": {Place: "z"}}}},
		{"resume without a position", `{"resume": {"a": "x.0", "b": ""}, "tail": 5}`, Query{Tail: 5, Resume: map[string]Position{"a": {Place: "x"}, "b": {}}}},
		{"all are new", `{"resume": {}}`, Query{Tail: 1000, Resume: map[string]Position{}}},
	} {
		c.want.App = checkout
		got, err := parsed(subjects.LogTail, c.body, now)
		if err != nil || !reflect.DeepEqual(got.query, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
	if got, err := parsed(subjects.LogGet, "", now); err != nil || got.query.Follow != FollowNever {
		t.Errorf("get: got %+v, %v", got, err)
	}
	for body, want := range map[string]struct {
		code subjects.Code
		text string
	}{
		`{"source": "PERSISTED_ONLY"}`:                             {subjects.CodeFailedPrecondition, `source: "PERSISTED_ONLY": there are no persisted logs, want LIVE_ONLY or LIVE_OR_PERSISTED`},
		`{"source": "PERSISTED_ONLY", "tail": "none"}`:             {subjects.CodeInvalidArgument, `tail: "none": want a whole number of lines from 0 on, or "all"`},
		`{"source": 1}`:                                            {subjects.CodeInvalidArgument, "source: 1: want one of LIVE_OR_PERSISTED, LIVE_ONLY, PERSISTED_ONLY"},
		`{"tail": -1}`:                                             {subjects.CodeInvalidArgument, `tail: -1: want a whole number of lines from 0 on, or "all"`},
		`{"tail": null}`:                                           {subjects.CodeInvalidArgument, `tail: null: want a whole number of lines from 0 on, or "all"`},
		`{"tail": 1.5}`:                                            {subjects.CodeInvalidArgument, `tail: 1.5: want a whole number of lines from 0 on, or "all"`},
		`{"tail": -1e30}`:                                          {subjects.CodeInvalidArgument, `tail: -1e30: want a whole number of lines from 0 on, or "all"`},
		`{"since_time": "9999-12-31T23:59:59-01:00"}`:              {subjects.CodeInvalidArgument, `since_time: "9999-12-31T23:59:59-01:00": want a time from the year 0 to the year 9999 in UTC`},
		`{"since_time": "0000-01-01T00:00:00+01:00"}`:              {subjects.CodeInvalidArgument, `since_time: "0000-01-01T00:00:00+01:00": want a time from the year 0 to the year 9999 in UTC`},
		`{"since": "beginning"}`:                                   {subjects.CodeInvalidArgument, `since: "beginning": want a duration like 10m or 1h30m, or "start", in quotes`},
		`{"since": "start", "since_time": "2026-11-21T08:00:00Z"}`: {subjects.CodeInvalidArgument, `since_time: "2026-11-21T08:00:00Z": want since or since_time, not both`},
		`{"positions": "yes"}`:                                     {subjects.CodeInvalidArgument, `positions: "yes": want true or false`},
		`{"resume": {"a": 1}}`:                                     {subjects.CodeInvalidArgument, `resume: {"a":1}: want an object with the positions of replicas`},
		`{"resume": {"a": "x.1", "b": "x"}}`:                       {subjects.CodeInvalidArgument, `resume: replica "b": "x": want the value of a Flyte-Log-Position`},
		`{"resume": {"a": "x.01"}}`:                                {subjects.CodeInvalidArgument, `resume: replica "a": "x.01": want the value of a Flyte-Log-Position`},
		`{"resume": {"a": "x.-1"}}`:                                {subjects.CodeInvalidArgument, `resume: replica "a": "x.-1": want the value of a Flyte-Log-Position`},
		`{"resume": {"a": ".1"}}`:                                  {subjects.CodeInvalidArgument, `resume: replica "a": ".1": want the value of a Flyte-Log-Position`},
		`{"resume": {"a": "x.1"}, "tail": 5}`:                      {subjects.CodeInvalidArgument, `tail: 5: every replica in resume has a position, want tail or resume, not both`},
		`{"resume": {}, "since": "5m"}`:                            {subjects.CodeInvalidArgument, `since: "5m": every replica in resume has a position, want since or resume, not both`},
	} {
		_, err := parsed(subjects.LogTail, body, now)
		var failure *request.Error
		if !errors.As(err, &failure) || failure.Code != want.code || failure.Text != want.text {
			t.Errorf("%s: got %v, want %v", body, err, want)
		}
	}
	if got, err := parsed(subjects.LogTail, `{"window": 5.0}`, now); err != nil || got.window != 5 {
		t.Errorf("window: got %+v, %v", got, err)
	}
	for _, body := range []string{`{"window": 5}`, `{"follow": true}`, `{"max_duration": "5s"}`, `{"positions": true}`, `{"resume": {}}`} {
		if got, err := parsed(subjects.LogGet, body, now); err == nil {
			t.Errorf("get %s: got %+v", body, got)
		}
	}
}

// Whatever comes in, the answer is a request or one line of text.
func FuzzParseRequest(f *testing.F) {
	for _, body := range []string{"", "{}", `{"tail": 5}`, `{"tail": "all", "source": "PERSISTED_ONLY"}`, `{"since": "5m", "x": [1, "\n"]}`, `{"include": "("}`, "\xff", `{"tail": 1e99}`, `{"positions": true, "resume": {"a": "x.1", "b": ""}}`, `{"format": "` + strings.Repeat("é", 100) + `"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, op := range []subjects.LogOp{subjects.LogTail, subjects.LogGet} {
			r, err := parsed(op, string(body), time.Now())
			if err == nil {
				if r.query.Tail < -1 || r.window < 0 || r.maxDuration < 0 {
					t.Errorf("got %+v", r)
				}
				continue
			}
			var failure *request.Error
			if !errors.As(err, &failure) || failure.Code != subjects.CodeInvalidArgument && failure.Code != subjects.CodeFailedPrecondition {
				t.Fatalf("got %v", err)
			}
			if text := request.OneLine(failure.Text); strings.ContainsAny(text, "\r\n") || len(text) > 1100 {
				t.Errorf("got %q", text)
			}
		}
	})
}

func testMetrics() *metrics {
	return newMetrics(prometheus.NewRegistry(), func() float64 { return 0 }, 1)
}

// What is due to wait is bounded, whatever its source writes, and counted in full.
func TestOutboxBounds(t *testing.T) {
	t.Parallel()
	for _, f := range []subjects.LogFormat{subjects.LogFormatText, subjects.LogFormatJSON} {
		all := &memoryUse{}
		o := newOutbox(&logRequest{format: f}, nil, all, testMetrics())
		for _, length := range []int{128 << 10, 100, 0} {
			lines := slices.Repeat([]Line{{Text: []byte(strings.Repeat("x", length))}}, 100)
			for range max(1, 1000/(length/100+1)) {
				if err := o.Lines(t.Context(), "a", lines, true, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
		// One replica after the other writes a line, which goes by itself.
		for i := range 2000 {
			if err := o.Lines(t.Context(), fmt.Sprint(i%300), []Line{{Text: []byte("x")}}, true, ""); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				o.mu.Lock()
				o.finishAll()
				o.mu.Unlock()
			}
		}
		for range 5000 {
			if err := o.Note(t.Context(), subjects.LogNoteReplica, []string{"a"}, "again"); err != nil {
				t.Fatal(err)
			}
		}
		if o.notes > noteBytes {
			t.Errorf("%s: notes take %d bytes", f, o.notes)
		}
		held, lines, dropped := 0, int64(0), int64(0)
		for _, b := range o.filling {
			held, lines = held+b.cost(), lines+int64(b.lines)
		}
		for _, p := range o.ready {
			if p.batch != nil {
				held, lines = held+p.batch.cost(), lines+int64(p.lines)
			}
			dropped += p.dropped
		}
		for _, n := range o.dropped {
			dropped += n
		}
		if held != o.bytes || int64(held) != all.used.Load() || held > liveBytes+300<<10 {
			t.Errorf("%s: %d bytes are held, %d counted, %d of all streams", f, held, o.bytes, all.used.Load())
		}
		if want := int64(100 + 50_000 + 100_000 + 2000); lines+dropped != want {
			t.Errorf("%s: %d lines wait, %d are dropped, want %d", f, lines, dropped, want)
		}
		// What is known of the replicas stays true.
		for _, names := range [][]string{{"a"}, {"a", "b"}} {
			if err := o.Replicas(t.Context(), names); err != nil {
				t.Fatal(err)
			}
		}
		for range 5000 {
			if err := o.Note(t.Context(), subjects.LogNoteReplica, []string{"a"}, "again"); err != nil {
				t.Fatal(err)
			}
		}
		last := ""
		for _, p := range o.ready {
			if p.note == subjects.LogNoteReplicas {
				last = strings.Join(p.replicas, ",")
			}
		}
		if last != "a,b" {
			t.Errorf("%s: the last replicas in a note are %q", f, last)
		}
		o.release()
		if n := all.used.Load(); n != 0 {
			t.Errorf("%s: %d bytes are counted in the end", f, n)
		}
	}
}

// When all streams hold too much together, each keeps its floor and no more.
func TestScarceMemory(t *testing.T) {
	t.Parallel()
	all := &memoryUse{}
	all.add(sharedBytes + 1)
	o := newOutbox(&logRequest{format: subjects.LogFormatText}, nil, all, testMetrics())
	for range 100 {
		if err := o.Lines(t.Context(), "a", slices.Repeat([]Line{{Text: []byte("a line of a log")}}, 1000), true, ""); err != nil {
			t.Fatal(err)
		}
	}
	if o.bytes > ringFloor+batchBytes || o.bytes < ringFloor/2 {
		t.Errorf("%d bytes wait for the reader", o.bytes)
	}
	w := newWindow(maxWindow, all)
	seq := uint64(0)
	for w.tryEnter(seq, &nats.Msg{Data: make([]byte, 32<<10)}, nil) {
		seq++
	}
	if w.bytes < windowFloor || w.bytes > windowFloor+64<<10 {
		t.Errorf("%d bytes are open", w.bytes)
	}
	c := newCollector(&logRequest{format: subjects.LogFormatText}, nil, all, 1<<20, nil, testMetrics())
	for range 100 {
		if err := c.Lines(t.Context(), "a", make([]Line, 1000), false, ""); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.lines; n < 4000 || n*lineOverhead > keptFloor || n+c.dropped != 100_000 {
		t.Errorf("%d lines are kept, %d dropped", n, c.dropped)
	}
	o.release()
	w.release()
	c.grow(-c.text, -c.lines)
	if n := all.used.Load(); n != sharedBytes+1 {
		t.Errorf("%d bytes are counted in the end", n)
	}
}

// A message is never longer than the server lets through, and what is cut is said.
func TestParts(t *testing.T) {
	t.Parallel()
	for _, f := range []subjects.LogFormat{subjects.LogFormatText, subjects.LogFormatRaw, subjects.LogFormatJSON, subjects.LogFormatProto} {
		r := &logRequest{format: f, query: Query{App: checkout}}
		b := &batch{replica: "a"}
		for i := range 50 {
			r.appendLine(b, Line{Text: []byte(fmt.Sprintf("%02d", i) + strings.Repeat("\x01", 20*i))})
		}
		r.appendLine(b, Line{Text: []byte(strings.Repeat("\x01", 10_000))})
		e := newEncoder(r, "acme")
		e.addReplicas("a", "b")
		bodies, counts, err := e.parts(b, 2048)
		if err != nil {
			t.Fatal(err)
		}
		lines, all := 0, ""
		for i, body := range bodies {
			if len(body) > 2048 {
				t.Errorf("%s: a body of %d bytes", f, len(body))
			}
			lines, all = lines+counts[i], all+string(body)
		}
		if lines != 51 || !strings.Contains(all, " bytes cut]") || !strings.Contains(all, "49") {
			t.Errorf("%s: %d lines", f, lines)
		}
	}
}

// A line that was cut, and that a message or an answer cuts once more, says how many of all its bytes are missing.
func TestCutTwice(t *testing.T) {
	t.Parallel()
	const all, missing, most = 200_000, 70_000, 8 << 10
	line := Line{Time: time.Now(), Text: append(bytes.Repeat([]byte("y"), all-missing-1), '\r'), Cut: missing}
	check := func(what string, body []byte) {
		t.Helper()
		found := regexp.MustCompile(`(y+) \[appbridge: (\d+) bytes cut\]`).FindSubmatch(body)
		if found == nil {
			t.Fatalf("%s: got %d bytes that end in %q", what, len(body), body[max(0, len(body)-100):])
		}
		if n, err := strconv.Atoi(string(found[2])); err != nil || len(found[1])+n != all {
			t.Errorf("%s: %d bytes are there and %d missing, want %d together", what, len(found[1]), n, all)
		}
	}
	for _, f := range []subjects.LogFormat{subjects.LogFormatText, subjects.LogFormatRaw, subjects.LogFormatJSON, subjects.LogFormatProto} {
		r := &logRequest{format: f, query: Query{App: checkout}}
		b := &batch{replica: "a"}
		r.appendLine(b, Line{Text: []byte("before")})
		r.appendLine(b, line)
		bodies, _, err := newEncoder(r, "").parts(b, most)
		if err != nil || len(bodies) != 2 {
			t.Fatalf("%s: got %d messages, %v", f, len(bodies), err)
		}
		check(string(f), bodies[1])

		c := newCollector(r, nil, &memoryUse{}, most, nil, testMetrics())
		if err := c.Lines(t.Context(), "a", []Line{line}, false, ""); err != nil {
			t.Fatal(err)
		}
		msg, _, err := c.answer(newEncoder(r, ""))
		if err != nil {
			t.Fatal(err)
		}
		check("get "+string(f), msg.Data)
	}
}

// A line end may be a carriage return and a line feed: no more than that one is taken off.
func TestCarriageReturns(t *testing.T) {
	t.Parallel()
	for f, want := range map[subjects.LogFormat]string{
		subjects.LogFormatText: "50%\r100%\r\n", subjects.LogFormatJSON: "50%\r100%\r\n", subjects.LogFormatRaw: "50%\r100%\r\r\n",
	} {
		b := &batch{}
		(&logRequest{format: f}).appendLine(b, Line{Text: []byte("50%\r100%\r\r")})
		if got := string(b.text); got != want {
			t.Errorf("%s: got %q, want %q", f, got, want)
		}
	}
}

// Flyte has at most 100 lines in one LogLines message.
func TestLogLines(t *testing.T) {
	t.Parallel()
	r := &logRequest{format: subjects.LogFormatProto, query: Query{App: checkout}}
	b := &batch{replica: "a"}
	for range 2*maxLogLines + 1 {
		r.appendLine(b, Line{Text: []byte("line")})
	}
	var sizes []int
	for _, logs := range newEncoder(r, "acme").logLines(b) {
		sizes = append(sizes, len(logs.GetStructuredLines()))
	}
	if got, want := fmt.Sprint(sizes), "[100 100 1]"; got != want {
		t.Errorf("got messages of %s lines, want %s", got, want)
	}
}
