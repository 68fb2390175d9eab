package logsvc

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/answer"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var update = flag.Bool("update", false, "write the generated parts of the documentation") //nolint:gochecknoglobals // a flag

var checkout = subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"} //nolint:gochecknoglobals // a constant of these tests

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
		{"since", `{"since": "10m"}`, Query{Tail: -1, Since: now.Add(-10 * time.Minute)}},
		{"since and tail", `{"since": "10m", "tail": 5}`, Query{Tail: 5, Since: now.Add(-10 * time.Minute)}},
		{"since_time", `{"since_time": "2026-11-21T08:00:00.5Z"}`, Query{Tail: -1, Since: time.Date(2026, 11, 21, 8, 0, 0, 5e8, time.UTC)}},
		{"follow", `{"follow": true}`, Query{Tail: 1000, Follow: FollowAlways}},
		{"no follow", `{"follow": false}`, Query{Tail: 1000, Follow: FollowNever}},
		{"replica", `{"replica": "r", "container": "c", "previous": true}`, Query{Tail: 1000, Replica: "r", Container: "c", Previous: true}},
	} {
		c.want.App = checkout
		got, err := parseRequest(subjects.LogTail, checkout, []byte(c.body), now)
		if err != nil || got.query != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
	if got, err := parseRequest(subjects.LogGet, checkout, nil, now); err != nil || got.query.Follow != FollowNever {
		t.Errorf("get: got %+v, %v", got, err)
	}
	for _, body := range []string{`{"window": 5}`, `{"follow": true}`, `{"max_duration": "5s"}`} {
		if got, err := parseRequest(subjects.LogGet, checkout, []byte(body), now); err == nil {
			t.Errorf("get %s: got %+v", body, got)
		}
	}
}

// Whatever comes in, the answer is a request or one line of text.
func FuzzParseRequest(f *testing.F) {
	for _, body := range []string{"", "{}", `{"tail": 5}`, `{"since": "5m", "x": [1, "\n"]}`, `{"include": "("}`, "\xff", `{"tail": 1e99}`, `{"format": "` + strings.Repeat("é", 100) + `"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, op := range []subjects.LogOp{subjects.LogTail, subjects.LogGet} {
			r, err := parseRequest(op, checkout, body, time.Now())
			if err == nil {
				if r.query.Tail < -1 || r.window < 0 || r.maxDuration < 0 {
					t.Errorf("got %+v", r)
				}
				continue
			}
			var failure *Error
			if !errors.As(err, &failure) || failure.Code != subjects.CodeInvalidArgument {
				t.Fatalf("got %v", err)
			}
			if text := answer.OneLine(failure.Text); strings.ContainsAny(text, "\r\n") || len(text) > 1100 {
				t.Errorf("got %q", text)
			}
		}
	})
}

// What is due to wait is bounded, whatever its source writes.
func TestOutboxBounds(t *testing.T) {
	t.Parallel()
	o := newOutbox(&request{format: formatText}, newMetrics(prometheus.NewRegistry()))
	text := []byte(strings.Repeat("x", 128<<10))
	for range 1000 {
		if err := o.Lines(t.Context(), "a", []Line{{Text: text}}, true); err != nil {
			t.Fatal(err)
		}
	}
	if o.bytes > liveBytes+len(text)+1 {
		t.Errorf("%d bytes wait", o.bytes)
	}
	for range 5 * maxParcels {
		if err := o.Note(t.Context(), subjects.LogNoteReplica, "a", "again"); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.ready) > maxParcels+liveBytes/batchBytes {
		t.Errorf("%d parcels wait", len(o.ready))
	}
	// What is known of the replicas stays true.
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		if err := o.Replicas(t.Context(), names); err != nil {
			t.Fatal(err)
		}
	}
	for range maxParcels {
		if err := o.Note(t.Context(), subjects.LogNoteReplica, "a", "again"); err != nil {
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
		t.Errorf("the last replicas that are told of are %q", last)
	}
}

// A message is never longer than the server lets through, and what is cut is said.
func TestParts(t *testing.T) {
	t.Parallel()
	for _, f := range []format{formatText, formatRaw, formatJSON, formatProto} {
		r := &request{format: f, query: Query{App: checkout}}
		b := &batch{replica: "a"}
		for i := range 50 {
			layout{r}.add(b, Line{Text: []byte(fmt.Sprintf("%02d", i) + strings.Repeat("\x01", 20*i))})
		}
		layout{r}.add(b, Line{Text: []byte(strings.Repeat("\x01", 10_000))})
		e := newEncoder(r, "acme")
		e.saw("a", "b")
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

// docs/metrics.md lists the metrics of the log service, as the program
// describes them.
func TestMetricsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg)
	newPodMetrics().register(reg)
	suite.MetricsTable(t, filepath.Join("..", "docs", "metrics.md"), "## Of the log service\n\n| metric | meaning |\n| --- | --- |\n", reg, *update)
}
