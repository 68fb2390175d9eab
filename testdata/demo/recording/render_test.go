package main

import (
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var docs = filepath.Join("..", "..", "..", "docs")

func TestSpans(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []span
	}{
		{"empty", "", nil},
		{"plain", "a <b>", []span{{"", "a <b>"}}},
		{"color", "x\x1b[32mgreen\x1b[0m y", []span{{"", "x"}, {"g", "green"}, {"", " y"}}},
		{"several parameters", "\x1b[0;1;31mred\x1b[m", []span{{"r", "red"}}},
		{"title and cursor", "\x1b]0;title\x07a\x1b[2K\x1b[?25lb", []span{{"", "ab"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(spans(test.text), test.want, cmp.AllowUnexported(span{})); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
}

func TestWrapped(t *testing.T) {
	long := strings.Repeat("é", columns-1)
	got := wrapped("\x1b[31m" + long + "ab\x1b[0mc")
	want := [][]span{{{"r", long + "a"}}, {{"r", "b"}, {"", "c"}}}
	if diff := cmp.Diff(got, want, cmp.AllowUnexported(span{})); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}

func TestScroll(t *testing.T) {
	arrivals := make([]time.Duration, rows+2)
	for i := range arrivals {
		arrivals[i] = time.Duration(i) * time.Second
	}
	if got := scroll(arrivals[:rows]); got != "" {
		t.Errorf("a screen that is not full scrolls: %s", got)
	}
	got := scroll(arrivals)
	for _, want := range []string{`values="0 0;0 -17;0 -34"`, `dur="8.0s"`, `keyTimes="0;0.1250;0.2500"`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s in it", got, want)
		}
	}
}

// The pictures and the texts of docs/ show the same sessions: the commands of README.md with events
// of each kind, and those of docs/watch.md; no address or folder of the machine that recorded them.
func TestRecording(t *testing.T) {
	for name, wanted := range map[string][]string{
		"demo":  {"$ make demo\n", ".created", ".updated", ".deleted", "FLYTE_APPS", "$ nats req --raw flyte.apps.logs.get.", "Flyte-Status: "},
		"watch": {"$ appbridge watch --once\n", "PROJECT  DOMAIN", " ACTIVE ", "  deleted  last status ACTIVE", "deployed\n", "$ appbridge watch\n", "apps: ", "sequence "},
	} {
		t.Run(name, func(t *testing.T) { recorded(t, name, wanted) })
	}
}

func recorded(t *testing.T, name string, wanted []string) {
	t.Helper()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	text := read(name + ".txt")
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("docs/%s.txt has no %q", name, want)
		}
	}
	if found := regexp.MustCompile(`/(home|root|tmp|work|Users)/\S*|\x1b`).FindString(text); found != "" {
		t.Errorf("docs/%s.txt has %q", name, found)
	}
	var pictured strings.Builder
	for _, row := range regexp.MustCompile(`(?m)^<text [^>]*>(.*)</text>$`).FindAllStringSubmatch(read(name+".svg"), -1) {
		pictured.WriteString(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(row[1], "")))
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), "") }
	if got, want := words(pictured.String()), words(text); got != want {
		t.Errorf("docs/%s.svg shows\n%.300s\ndocs/%s.txt\n%.300s", name, got, name, want)
	}
}
