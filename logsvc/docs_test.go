package logsvc_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var update = flag.Bool("update", false, "write the generated parts of the documentation") //nolint:gochecknoglobals // a flag

func logsPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "logs.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// docs/metrics.md lists the metrics of the log service, as the program
// describes them.
func TestMetricsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 1, InboxPrefix: "_INBOX"}
	if _, err := logsvc.New(cfg, nil, nil, nil, nil, reg); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.New(pods.Config{REST: &rest.Config{}, MaxPodStreams: 1}, nil, reg); err != nil {
		t.Fatal(err)
	}
	suite.MetricsTable(t, filepath.Join("..", "docs", "metrics.md"), "## Of the log service\n\n| metric | meaning |\n| --- | --- |\n", reg, *update)
}

// docs/logs.md has a row for every option, and the error in it is what the
// service says.
func TestDocumentedOptions(t *testing.T) {
	t.Parallel()
	b := newBench(t, some("a"))
	said := func(body string) string {
		t.Helper()
		msgs, _ := b.tail(body).all()
		return strings.TrimSuffix(text(msgs), "\n")
	}
	var names []string
	_, table, _ := strings.Cut(logsPage(t), "| option | type |")
	table, _, _ = strings.Cut(table, "\n\n")
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSuffix(row, " |\n"), " | ")
		name, isOption := strings.CutPrefix(cells[0], "| `")
		if !isOption {
			continue
		}
		name = strings.TrimSuffix(name, "`")
		names = append(names, name)
		want := strings.Trim(cells[len(cells)-1], "`|\n ")
		if name == "replica" || name == "container" || name == "previous" {
			continue // what Kubernetes has decides: TestKubernetesChoice, TestKubernetesPrevious
		}
		value, _, _ := strings.Cut(strings.TrimPrefix(want, name+": "), ": want")
		if got := said(`{"` + name + `": ` + value + `}`); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	_, known, _ := strings.Cut(said(`{"no such option": 1}`), "want one of ")
	if got, want := strings.Join(names, ", "), known; got != want {
		t.Errorf("documented are %s, want %s", got, want)
	}
}

// docs/logs.md has every code, every reason for an end and every note.
func TestDocumentedWords(t *testing.T) {
	page := logsPage(t)
	words := []string{
		subjects.HeaderLogStream, subjects.HeaderLogSeq, subjects.HeaderLogReplica, subjects.HeaderLogReplicas, subjects.HeaderLogNote,
		subjects.HeaderLogPosition, subjects.HeaderLogDropped, subjects.HeaderLogLimit, subjects.HeaderLogEnd, subjects.HeaderLogLines,
	}
	for _, end := range []subjects.LogEnd{
		subjects.LogEndEOF, subjects.LogEndStopped, subjects.LogEndLimit, subjects.LogEndMaxDuration,
		subjects.LogEndStalled, subjects.LogEndError, subjects.LogEndShutdown,
	} {
		words = append(words, "\n| `"+string(end)+"` |")
	}
	for _, note := range []subjects.LogNote{subjects.LogNoteReplicas, subjects.LogNoteWaiting, subjects.LogNoteDropped, subjects.LogNoteReplica} {
		words = append(words, "`"+string(note)+"`")
	}
	for _, code := range []subjects.Code{
		subjects.CodeInvalidArgument, subjects.CodeNotFound, subjects.CodeFailedPrecondition, subjects.CodeResourceExhausted,
		subjects.CodeInternal, subjects.CodeUnavailable, subjects.CodeDeadlineExceeded,
	} {
		words = append(words, "| "+code.HeaderValue()+" | "+code.String()+" |")
	}
	for _, word := range words {
		if !strings.Contains(page, word) {
			t.Errorf("docs/logs.md does not have %q", word)
		}
	}
}
