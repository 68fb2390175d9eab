package watch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

var testTime = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func appNamed(name string) subjects.AppID {
	return subjects.AppID{Project: "shop", Domain: "production", Name: name}
}

func state(name string, sequence uint64) appwatch.Item {
	return appwatch.Item{Type: appwatch.State, ID: appNamed(name), Kind: subjects.Updated, Sequence: sequence}
}

func mark(sequence uint64) appwatch.Item {
	return appwatch.Item{Type: appwatch.Mark, Position: appwatch.Position{StreamID: "id", Sequence: sequence}}
}

// shown are the names in a table and its footer.
func shown(m *model, after time.Duration) string {
	lines, _ := m.show(appview.Screen{Style: appview.Style{Columns: 200, Now: testTime.Add(after)}, Rows: 20})
	var words []string
	for _, line := range lines[1 : len(lines)-1] {
		if fields := strings.Fields(line); len(fields) > 3 {
			words = append(words, fields[2]+" "+fields[3])
		}
	}
	return strings.Join(words, ", ") + " | " + lines[len(lines)-1]
}

func TestModel(t *testing.T) {
	event := func(name string, kind subjects.EventKind, sequence uint64) appwatch.Item {
		return appwatch.Item{Type: appwatch.Event, ID: appNamed(name), Kind: kind, Sequence: sequence, Position: appwatch.Position{StreamID: "id", Sequence: sequence}}
	}
	restart := appwatch.Item{Type: appwatch.Restart, Reason: fmt.Errorf("%w: its id was a, and is b", appwatch.ErrOtherStream)}
	m := newModel(nil)
	for _, step := range []struct {
		name  string
		items []appwatch.Item
		after time.Duration
		want  string
	}{
		{"nothing yet", nil, 0, " | reading · 0 apps · sequence 0"},
		{"a part of the snapshot", []appwatch.Item{state("b", 7)}, 0, "b - | reading · 1 app: 1 without status · sequence 7"},
		{"the snapshot", []appwatch.Item{state("a", 9), mark(1000)}, 0, "a -, b - | 2 apps: 2 without status · sequence 1000"},
		{"events", []appwatch.Item{event("c", subjects.Created, 1001), event("a", subjects.Updated, 1002)}, 0, "a -, b -, c - | 3 apps: 3 without status · sequence 1002"},
		{"a delete", []appwatch.Item{event("a", subjects.Deleted, 1003)}, 0, "a DELETED, b -, c - | 2 apps: 2 without status · sequence 1003"},
		{"a while after it", nil, goneFor + time.Second, "b -, c - | 2 apps: 2 without status · sequence 1003"},
		{"a delete of an app that is not there", []appwatch.Item{event("x", subjects.Deleted, 1004)}, 0, "b -, c - | 2 apps: 2 without status · sequence 1004"},
		{"a loss", []appwatch.Item{{Type: appwatch.Loss, Reason: appwatch.ErrNotice}}, 0, "b -, c - | events are lost: notice · 2 apps: 2 without status · sequence 1004"},
		{"another stream", []appwatch.Item{restart, state("c", 3)}, 0, "b -, c - | reading all apps again: other-stream · reading · 2 apps: 2 without status · sequence 3"},
		{"its snapshot", []appwatch.Item{mark(4)}, 0, "c - | reading all apps again: other-stream · 1 app: 1 without status · sequence 4"},
		{"much later", nil, time.Hour, "c - | 1 app: 1 without status · sequence 4"},
	} {
		for _, it := range step.items {
			m.take(it, testTime)
		}
		if got := shown(m, step.after); got != step.want {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
	if got, want := m.summary(), "1 app: 1 without status"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An app that does not pass the filter any more goes, and comes back.
func TestModelFilter(t *testing.T) {
	m := newModel([]string{"FAILED"})
	for _, step := range []struct{ status, want string }{
		{"ACTIVE", " | reading · 0 apps · sequence 0"}, {"FAILED", "a FAILED | reading · 1 app: 1 FAILED · sequence 0"}, {"STOPPED", " | reading · 0 apps · sequence 0"},
	} {
		m.put(&appview.App{ID: appNamed("a"), Kind: subjects.Updated, Status: step.status}, testTime)
		if got := shown(m, 0); got != step.want {
			t.Errorf("%s: got %q, want %q", step.status, got, step.want)
		}
	}
}

// A table that has not changed is written again on request, and from time to time: the terminal may
// show something else.
func TestFrameRepaints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "screen")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	now := testTime
	w := &watch{Output: Output{Terminal: &Terminal{out: out}, Down: func() string { return "" }, Now: func() time.Time { return now }}}
	m := newModel(nil)
	m.take(mark(1), now)
	var s appview.Screen
	var drawn canvas
	for _, step := range []struct {
		name    string
		after   time.Duration
		pressed key
		want    int // screens so far
	}{
		{"the first", 0, noKey, 1},
		{"the same", drawEvery, noKey, 1},
		{"a second later", agesEvery, noKey, 1},
		{"a key without effect", 0, keyUp, 1},
		{"Ctrl-L", 0, keyRepaint, 2},
		{"long after", repaintEvery, noKey, 3},
	} {
		now = now.Add(step.after)
		if err := w.frame(m, &s, step.pressed, &drawn); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(path)
		if got := bytes.Count(written, []byte(appview.Paint(nil))); err != nil || got != step.want {
			t.Errorf("%s: got %d screens, %v; want %d", step.name, got, err, step.want)
		}
	}
	if got := keysOf([]byte("\x0c")); len(got) != 1 || got[0] != keyRepaint {
		t.Errorf("Ctrl-L: got %v", got)
	}
}

// A failure is noted once, although each try has a consumer with another name.
func TestRetryingNotesOnce(t *testing.T) {
	var notes bytes.Buffer
	w := &watch{Output: Output{Notes: &notes, Now: func() time.Time { return testTime }}}
	for _, name := range []string{"Zg1hYvXf0vWcVkqKXKLnbT", "o8wDs3nQZr0xX5dKXKLnbT"} {
		w.retrying(errors.New("consume FLYTE_APPS: CONSUMER.CREATE.FLYTE_APPS.appwatch-" + name + ".flyte.apps.events.>: nats: timeout"))
	}
	want := "appbridge: not readable, trying again: consume FLYTE_APPS: CONSUMER.CREATE.FLYTE_APPS.appwatch.flyte.apps.events.>: nats: timeout\n"
	if got := notes.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
