package appview_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, string(want)); diff != "" {
		t.Errorf("%s: got - want +:\n%s", name, diff)
	}
}

// app is an app with a message, which changed so long ago.
func app(project, domain, name, status string, replicas uint32, ago time.Duration) *appview.App {
	a := &appview.App{
		ID: subjects.AppID{Project: project, Domain: domain, Name: name}, Kind: subjects.Updated, Status: status, PreviousStatus: "PENDING",
		Sequence: 42, PreviousSequence: 41, MessageID: "u/48213/41", UID: "u", ResourceVersion: "48213", Generation: 3, Revision: name + "-00003",
		Time: now.Add(-ago).Truncate(time.Second), Stored: now.Add(-ago),
	}
	a.Body = func() *appv1.App { return body(a, replicas, "registry.example.com/shop/"+name+":1.5.0") }
	a.Old = func() *appv1.App { return body(a, 0, "registry.example.com/shop/"+name+":1.4.0") }
	return a
}

func body(a *appview.App, replicas uint32, image string) *appv1.App {
	return &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Org: "flyte", Project: a.ID.Project, Domain: a.ID.Domain, Name: a.ID.Name}},
		Spec:     &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{Image: image}}},
		Status: &appv1.Status{
			CurrentReplicas: replicas, CreatedAt: timestamppb.New(now.Add(-26 * time.Hour)),
			Ingress:    &appv1.Ingress{PublicUrl: "https://" + a.ID.Name + ".apps.example.com"},
			Conditions: []*appv1.Condition{{DeploymentStatus: appv1.Status_DeploymentStatus(appv1.Status_DeploymentStatus_value["DEPLOYMENT_STATUS_"+a.Status]), Message: "RevisionFailed: no\nsuch image"}},
		},
	}
}

// apps are of every status, with hostile names among them.
func apps() []*appview.App {
	gone := app("shop", "development", "recommender", "", 0, 3*time.Second)
	gone.Kind, gone.PreviousStatus, gone.Old = subjects.Deleted, "FAILED", nil
	bare := &appview.App{ID: subjects.AppID{Project: "shop", Domain: "production", Name: "bare"}, Kind: subjects.Created}
	return []*appview.App{
		app("ml", "development", "churn-dashboard", "STOPPED", 0, 90*time.Second),
		app("ml", "production", "café 東京 👩‍🔬", "ACTIVE", 2, 40*time.Minute),
		app("ml", "production", "\x1b]0;root@prod\x07\x1b[31mred\u202egnp.exe\xff", "ACTIVE", 1, 5*time.Hour),
		gone, bare,
		app("shop", "production", "search", "FAILED", 0, 9*24*time.Hour),
		app("shop", "production", "storefront", "ACTIVE", 3, 1500*time.Millisecond),
	}
}

func TestTable(t *testing.T) {
	for name, style := range map[string]appview.Style{
		"table": {}, "wide": {Wide: true}, "color": {Color: true, Columns: 120}, "columns72": {Columns: 72}, "columns40": {Columns: 40}, "columns20": {Columns: 20}, "wide140": {Wide: true, Columns: 140},
	} {
		style.Now = now
		lines := appview.Table(apps(), style)
		golden(t, name+".golden", strings.Join(lines, "\n")+"\n")
		for _, line := range lines {
			if style.Columns > 0 && !style.Color && appview.Width(line) > style.Columns {
				t.Errorf("%s: %q takes %d columns", name, line, appview.Width(line))
			}
		}
	}
}

// A terminal of any size gets exactly its rows, none of them wider than it is.
func TestScreenFits(t *testing.T) {
	for columns := 1; columns < 150; columns += 7 {
		for rows := 1; rows < 12; rows++ {
			s := appview.Screen{Style: appview.Style{Columns: columns, Now: now}, Rows: rows, First: 2, Note: "events are lost", Connection: "gone", Since: now, Keys: true}
			lines := s.Lines(apps(), map[string]int{"ACTIVE": 3})
			if len(lines) != rows {
				t.Errorf("%d columns, %d rows: got %d rows", columns, rows, len(lines))
			}
			for _, line := range lines {
				if appview.Width(line) > max(columns, 4) {
					t.Errorf("%d columns: %q takes %d", columns, line, appview.Width(line))
				}
			}
		}
	}
}

func TestScreen(t *testing.T) {
	counts := map[string]int{"ACTIVE": 3, "STOPPED": 1, "FAILED": 1, "": 1}
	var all []string
	for _, s := range []appview.Screen{
		{Rows: 12, Position: 1047},
		{Rows: 6, First: 3, Position: 1047, Keys: true, Filter: "project shop"},
		{Rows: 6, First: 99, Reading: true},
		{Rows: 5, Failure: "consume FLYTE: stream not found", Since: now.Add(-2 * time.Second)},
		{Rows: 5, Connection: "dial tcp 127.0.0.1:4222: connection refused", Since: now.Add(-75 * time.Second), Note: "events are lost: notice"},
	} {
		s.Columns, s.Now = 100, now
		all = append(all, strings.Join(s.Lines(apps(), counts), "\n"))
	}
	golden(t, "screens.golden", strings.Join(all, "\n----\n")+"\n")
}

func TestPaint(t *testing.T) {
	if got, want := appview.Paint([]string{"a", "b"}), "\x1b[H\x1b[Ka\r\n\x1b[Kb"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Only what is shown is decoded.
func TestScreenDecodesWhatItShows(t *testing.T) {
	decoded := 0
	many := make([]*appview.App, 20_000)
	for i := range many {
		many[i] = &appview.App{ID: subjects.AppID{Project: "p", Domain: "d", Name: "n"}, Body: func() *appv1.App { decoded++; return nil }}
	}
	s := appview.Screen{Style: appview.Style{Columns: 100}, Rows: 40, First: 10_000}
	s.Lines(many, nil)
	if want := 38; decoded != want {
		t.Errorf("%d apps were decoded, want %d", decoded, want)
	}
}

func TestEvent(t *testing.T) {
	marked := app("shop", "production", "storefront", "ACTIVE", 3, time.Second)
	marked.Merged, marked.Synthesized, marked.FinalUnknown, marked.Truncated, marked.Skipped = 4, true, true, []string{"old_app", "spec"}, 2
	marked.Old = nil
	same := app("shop", "production", "storefront", "ACTIVE", 0, time.Second)
	same.PreviousStatus, same.Old = "ACTIVE", same.Body
	created := app("shop", "production", "search", "PENDING", 0, time.Minute)
	created.Kind, created.Old = subjects.Created, nil
	var out strings.Builder
	for _, color := range []bool{false, true} {
		for _, a := range append(apps(), marked, same, created) {
			out.WriteString(appview.Event(a, appview.Style{Now: now, Color: color}) + "\n")
		}
	}
	golden(t, "events.golden", out.String())
}

func TestDocuments(t *testing.T) {
	var lines, documents bytes.Buffer
	list := appview.List{Position: "id/42", Apps: []*appview.Fields{}}
	for _, a := range apps() {
		fields := appview.FieldsOf(a)
		d := appview.Document{Type: appview.TypeEvent, Position: "id/42", Fields: fields}
		for out, encode := range map[*bytes.Buffer]func(any) ([]byte, error){&lines: appview.JSON, &documents: appview.YAML} {
			text, err := encode(d)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(text)
		}
		list.Apps = append(list.Apps, fields)
	}
	golden(t, "events.json.golden", lines.String())
	golden(t, "events.yaml.golden", documents.String())
	text, err := appview.JSON(list)
	if err != nil || !json.Valid(text) {
		t.Fatalf("%v: %s", err, text)
	}
	if text, err := appview.JSON(appview.Mark{Type: appview.TypeMark, Position: "id/42", Sequence: 42}); err != nil || string(text) != `{"type":"mark","position":"id/42","sequence":42}`+"\n" {
		t.Errorf("got %s, %v", text, err)
	}
}

// An App that protobuf JSON cannot express ends no output: it is in the document in binary.
func TestDocumentOfAnAppWithoutJSON(t *testing.T) {
	a := app("shop", "production", "search", "ACTIVE", 1, time.Second)
	with := func(d *durationpb.Duration) func() *appv1.App {
		return func() *appv1.App {
			out := body(a, 1, "registry.example.com/search:1")
			out.Spec.Timeouts = &appv1.TimeoutConfig{RequestTimeout: d}
			return out
		}
	}
	a.Body, a.Old = with(&durationpb.Duration{Seconds: 1 << 60}), with(&durationpb.Duration{Seconds: 300})
	text, err := appview.JSON(appview.Document{Type: appview.TypeEvent, Fields: appview.FieldsOf(a)})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		App            string
		Object, Old    json.RawMessage
		ObjectProtobuf []byte
		OldProtobuf    []byte
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.App != "search" || got.Object != nil || got.Old == nil || got.OldProtobuf != nil {
		t.Errorf("got %s", text)
	}
	var object appv1.App
	if err := proto.Unmarshal(got.ObjectProtobuf, &object); err != nil || !proto.Equal(&object, a.Body()) {
		t.Errorf("got %v, %v", &object, err)
	}
}

// Programs that read YAML 1.1 get texts as texts.
func TestYAML11(t *testing.T) {
	for _, text := range []string{
		"y", "Y", "n", "yes", "Yes", "NO", "on", "Off", "true", "null", "~", "=", "<<",
		"12:30:45", "1:30", "-1:30.5", "190:20:30.15", "0b101", "0x1F", "010", "1_000", "+1", ".5", "1e3", ".inf", ".NaN", "2026-11-21", "2026-1-2T3:04:05",
	} {
		document, err := appview.YAML(map[string]string{text: text})
		if got, want := string(document), fmt.Sprintf("---\n%q: %q\n", text, text); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "none", "ACTIVE", "v1.5", "search-00003", "a:1"} {
		document, err := appview.YAML(map[string]string{text: text})
		if got, want := string(document), "---\n"+text+": "+text+"\n"; err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
}

// The two forms are the same document, and neither has a byte that a terminal obeys.
func FuzzDocument(f *testing.F) {
	for _, text := range []string{"", "plain", "\x1b[31m", "\u202e", "\U000e0001", "\x7f\u0085\u2028\ufeff", "yes", "0x10", "- a: b", "a\tb\r\nc ", "\xff", "null", "1e3", "😀"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d := appview.Document{Type: appview.TypeEvent, Reason: text, Fields: &appview.Fields{Project: text, Domain: "d", App: "a"}}
		line, err := appview.JSON(d)
		if err != nil {
			t.Fatal(err)
		}
		document, err := appview.YAML(d)
		if err != nil {
			t.Fatal(err)
		}
		var fromJSON, fromYAML map[string]any
		if err := json.Unmarshal(line, &fromJSON); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if err := yaml.Unmarshal(document, &fromYAML); err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
			t.Errorf("YAML - JSON +:\n%s", diff)
		}
		for _, out := range [][]byte{line, document} {
			if bytes.ContainsFunc(out, func(r rune) bool { return r != '\n' && appview.Unsafe(r) }) {
				t.Errorf("%q has a control character", out)
			}
		}
	})
}

func FuzzSafe(f *testing.F) {
	for _, text := range []string{"", "a", "\x1b[2J", "é\xff", "\u202e\u200b", "👩‍🔬"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		safe := appview.Safe(text)
		if strings.ContainsFunc(safe, appview.Unsafe) {
			t.Errorf("%q has a control character", safe)
		}
		if appview.Safe(safe) != safe {
			t.Errorf("%q changes again", safe)
		}
	})
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 5*time.Minute + 30*time.Second: "5m30s",
		179 * time.Minute: "179m", 3*time.Hour + 5*time.Minute: "3h5m", 47 * time.Hour: "47h", 50 * time.Hour: "2d2h", 100 * 24 * time.Hour: "100d", 740 * 24 * time.Hour: "2y10d",
	} {
		if got := appview.Age(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}

func TestReason(t *testing.T) {
	got := appview.Reason(app("shop", "production", "search", "FAILED", 0, 0))
	if want := "shop/production/search is FAILED: RevisionFailed: no such image"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func BenchmarkScreen(b *testing.B) {
	many := make([]*appview.App, 20_000)
	for i := range many {
		many[i] = app("shop", "production", "storefront", "ACTIVE", 3, time.Hour)
	}
	s := appview.Screen{Style: appview.Style{Columns: 120, Now: now, Color: true}, Rows: 50}
	b.ReportAllocs()
	for b.Loop() {
		appview.Paint(s.Lines(many, map[string]int{"ACTIVE": len(many)}))
	}
}
