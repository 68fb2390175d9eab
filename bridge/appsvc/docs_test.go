package appsvc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

// What docs/apps.md shows of errors is what the service says, and it lists every code
// and every outcome.
func TestDocumentedErrors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "apps.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	w := serve(t)
	shown := regexp.MustCompile(`(?m)^\$ nats req (\S+) '(.*)'\n([^${\x60].*)$`).FindAllStringSubmatch(page, -1)
	for _, example := range shown {
		answer := w.ask(example[1], "", []byte(example[2]))
		if got, want := strings.TrimSuffix(string(answer.Data), "\n"), example[3]; got != want {
			t.Errorf("%s %s\n got %s\nwant %s", example[1], example[2], got, want)
		}
	}
	if got, want := len(shown), 4; got != want {
		t.Errorf("%d errors are shown, want %d", got, want)
	}
	for _, code := range []subjects.Code{
		subjects.CodeInvalidArgument, subjects.CodePermissionDenied, subjects.CodeNotFound, subjects.CodeFailedPrecondition,
		subjects.CodeResourceExhausted, subjects.CodeInternal, subjects.CodeUnavailable, subjects.CodeDeadlineExceeded,
	} {
		if row := fmt.Sprintf("\n| %d | %s | ", code, code); !strings.Contains(page, row) {
			t.Errorf("the page has no row %q", row)
		}
	}
	for _, outcome := range []subjects.Outcome{
		subjects.OutcomeCreated, subjects.OutcomeUpdated, subjects.OutcomeUnchanged, subjects.OutcomeStopped, subjects.OutcomeDeleted, subjects.OutcomeMissing,
	} {
		if row := fmt.Sprintf("\n| `%s` | ", outcome); !strings.Contains(page, row) {
			t.Errorf("the page has no row %q", row)
		}
	}
}
