package watch_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// purgeBelow removes the events before a sequence.
func purgeBelow(sequence uint64) jetstream.StreamPurgeOpt {
	return jetstream.WithPurgeSequence(sequence)
}

func waitNote(t *testing.T, r *running, text string) {
	t.Helper()
	r.waitFor(r.notes, text)
}

// history is that of three apps, one of which is gone.
func history() []step {
	return []step{
		{app: "shop/production/search", kind: subjects.Created, status: "PENDING", generation: 1, image: "search:1"},
		{app: "shop/production/cart", kind: subjects.Created, status: "ACTIVE", generation: 1, image: "cart:1", replicas: 2},
		{app: "ml/development/dashboard", kind: subjects.Created, status: "ACTIVE", generation: 1, image: "dash:1"},
		{app: "shop/production/search", kind: subjects.Updated, status: "ACTIVE", generation: 1, image: "search:1", replicas: 1},
		{app: "ml/development/dashboard", kind: subjects.Deleted, generation: 1},
		{app: "shop/production/cart", kind: subjects.Updated, status: "STOPPED", generation: 2, image: "cart:1"},
	}
}

// table is what was printed without the column of the last change, whose times are those of the test.
func table(t *testing.T, printed string) [][]string {
	t.Helper()
	var rows [][]string
	for line := range strings.Lines(printed) {
		fields := strings.Fields(line)
		rows = append(rows, fields[:min(len(fields), 5)])
	}
	return rows
}

// published is a server that has all of history.
func published(t *testing.T) jetstream.JetStream {
	t.Helper()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	for _, step := range history() {
		p.publish(step)
	}
	return dial(t, s.ClientURL())
}

func TestOnce(t *testing.T) {
	t.Parallel()
	js := published(t)
	titles := []string{"PROJECT", "DOMAIN", "NAME", "STATUS", "REPLICAS"}
	cart, search := []string{"shop", "production", "cart", "STOPPED", "0"}, []string{"shop", "production", "search", "ACTIVE", "1"}
	for _, test := range []struct {
		name   string
		reader appwatch.Options
		want   [][]string
	}{
		{"all", appwatch.Options{}, [][]string{titles, cart, search}},
		{"status", appwatch.Options{Statuses: []string{"ACTIVE"}}, [][]string{titles, search}},
		{"project", appwatch.Options{Project: "ml"}, [][]string{titles}},
		{"app", appwatch.Options{App: "cart"}, [][]string{titles, cart}},
	} {
		r := start(t, js, watch.Options{Reader: test.reader, Once: true, Timeout: suite.Patience})
		if err := r.end(); err != nil {
			t.Errorf("%s: got %v", test.name, err)
		}
		if diff := cmp.Diff(table(t, r.out.String()), test.want); diff != "" {
			t.Errorf("%s: got - want +:\n%s", test.name, diff)
		}
	}
	for form, want := range map[watch.Form]string{
		watch.Name: "shop/production/cart\nshop/production/search\n",
		watch.Wide: "dev.local/nothing",
		watch.JSON: `"app":"cart","kind":"updated","sequence":6`,
		watch.YAML: "    app: cart\n    kind: updated\n",
	} {
		r := start(t, js, watch.Options{Form: form, Once: true, Timeout: suite.Patience})
		if err := r.end(); err != nil {
			t.Errorf("form %d: got %v", form, err)
		}
		if form == watch.Wide {
			want = "registry.example.com/cart:1"
		}
		if !strings.Contains(r.out.String(), want) {
			t.Errorf("form %d: got\n%s\nwant %q in it", form, r.out, want)
		}
	}
	r := start(t, js, watch.Options{Reader: appwatch.Options{Project: "ml", Domain: "development", App: "dashboard"}, Once: true, Timeout: suite.Patience})
	if err := r.end(); !errors.Is(err, watch.ErrGone) {
		t.Errorf("an app that is gone: got %v", err)
	}
}

// documents are the lines of JSON that were printed.
func documents(t *testing.T, printed string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(printed) {
		var d map[string]any
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, d)
	}
	return all
}

// A program reads states, a mark, and events; and resumes behind any of their positions.
func TestDocumentsResume(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	all := history()
	for _, step := range all[:3] {
		p.publish(step)
	}
	js := dial(t, s.ClientURL())
	r := start(t, js, watch.Options{Form: watch.JSON})
	r.prints(`"type":"mark"`)
	for _, step := range all[3:] {
		p.publish(step)
	}
	r.prints(`"previousStatus":"ACTIVE","previousSequence":2`)
	r.stop()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	var types []string
	from := ""
	for _, d := range documents(t, r.out.String()) {
		types = append(types, d["type"].(string))
		if d["type"] == appview.TypeMark {
			from = d["position"].(string)
		}
	}
	if want := []string{"state", "state", "state", "mark", "event", "event", "event"}; !slices.Equal(types, want) {
		t.Errorf("got %q, want %q", types, want)
	}
	position, err := appwatch.ParsePosition(from)
	if err != nil {
		t.Fatal(err)
	}
	again := start(t, js, watch.Options{Reader: appwatch.Options{From: position}, Form: watch.JSON, Once: true, Timeout: suite.Patience})
	if err := again.end(); err != nil || !strings.Contains(again.out.String(), `"type":"mark"`) {
		t.Errorf("got %v and\n%s", err, again.out)
	}
	var sequences []float64
	for _, d := range documents(t, again.out.String()) {
		if d["type"] == appview.TypeEvent {
			sequences = append(sequences, d["sequence"].(float64))
		}
	}
	if want := []float64{4, 5, 6}; !slices.Equal(sequences, want) {
		t.Errorf("behind the mark: got %v, want %v", sequences, want)
	}
}

// Without a terminal: the table, and a line for each event behind it.
func TestPlain(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	all := history()
	for _, step := range all[:4] {
		p.publish(step)
	}
	r := start(t, dial(t, s.ClientURL()), watch.Options{})
	r.prints("search")
	for _, step := range all[4:] {
		p.publish(step)
	}
	r.prints("shop/production/cart  updated  status ACTIVE -> STOPPED, replicas 2 -> 0\n")
	if !strings.Contains(r.out.String(), "ml/development/dashboard  deleted  last status ACTIVE\n") {
		t.Errorf("got\n%s", r.out)
	}
	r.stop()
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

func TestSince(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	times := p.stored(history())
	r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: appwatch.Options{Since: times[3]}, Once: true, Timeout: suite.Patience})
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(r.out.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got = append(got, text)
	}
	want := []string{
		"shop/production/search  updated  status PENDING -> ACTIVE, replicas 0 -> 1",
		"ml/development/dashboard  deleted  last status ACTIVE",
		"shop/production/cart  updated  status ACTIVE -> STOPPED, replicas 2 -> 0",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}

// gone is an output whose reader has left.
type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestOutputIsGone(t *testing.T) {
	t.Parallel()
	js := published(t)
	for name, opts := range map[string]watch.Options{
		"plain": {}, "once": {Once: true}, "documents": {Form: watch.JSON}, "since": {Reader: appwatch.Options{Since: time.Unix(1, 0)}, Events: true}, "at": {At: time.Now()},
		"until": {Reader: searchOnly, Until: &watch.Until{Status: "STOPPED"}},
	} {
		err := watch.Run(t.Context(), js, opts, watch.Output{Lines: gone{}, Notes: &buffer{}, Now: time.Now, Down: func() string { return "" }})
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A server that restarts costs a note; nothing is printed twice or missing.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	port, dir := suite.FreePort(t), t.TempDir()
	s := restartable(t, port, dir)
	p := newPublisher(t, s.ClientURL())
	all := history()
	for _, step := range all[:3] {
		p.publish(step)
	}
	r := start(t, dial(t, s.ClientURL()), watch.Options{Form: watch.JSON})
	r.prints(`"type":"mark"`)
	s.Shutdown()
	s.WaitForShutdown()
	restartable(t, port, dir)
	suite.Eventually(t, suite.Patience, "publish", func() error {
		// A request that was sent to the server of before has no answer.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.js.AccountInfo(ctx)
		return err
	})
	for _, step := range all[3:] {
		p.publish(step)
	}
	r.prints(`"previousStatus":"ACTIVE","previousSequence":2`)
	var sequences []float64
	for _, d := range documents(t, r.out.String()) {
		if d["type"] == appview.TypeEvent {
			sequences = append(sequences, d["sequence"].(float64))
		}
	}
	if want := []float64{4, 5, 6}; !slices.Equal(sequences, want) {
		t.Errorf("got events %v, want %v", sequences, want)
	}
}
