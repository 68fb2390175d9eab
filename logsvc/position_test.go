package logsvc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

// TestPositionOfMessages: however lines are put into messages, and left out by an expression, each message
// says where it ends.
func TestPositionOfMessages(t *testing.T) {
	t.Parallel()
	const calls, each = 40, 100
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		lines := make([]logsvc.Line, each)
		for c := range calls {
			for i := range lines {
				lines[i] = line(c, fmt.Sprintf("%d %s", c*each+i+1, strings.Repeat("x", 10*(i%50))))
			}
			if err := out.Lines(ctx, "a", lines, false, fmt.Sprint(c)); err != nil {
				return err
			}
		}
		return nil
	}}
	b := newBench(t, source, func(c *logsvc.Config) { c.MaxReply = 8 << 10 })
	for _, options := range []string{``, `, "include": "^[0-9]*7 "`, `, "include": "^[0-9]*[1-9]0 "`, `, "exclude": "00 "`, `, "exclude": "."`} {
		for _, format := range []string{"raw", "text"} {
			msgs, _ := b.tail(`{"positions": true, "tail": "all", "format": "` + format + `"` + options + `}`).all()
			first := true
			passed := 0
			for _, m := range msgs {
				if m.Header.Get(subjects.HeaderLogNote) != "" {
					continue
				}
				position := m.Header.Get(subjects.HeaderLogPosition)
				number := 0 // of the last line
				for l := range strings.Lines(string(m.Data)) {
					before := number
					if _, err := fmt.Sscan(l, &number); err != nil {
						t.Fatal(err)
					}
					if before == 0 && number <= passed {
						t.Fatalf("%s%s: line %d comes after a position behind %d", format, options, number, passed)
					}
				}
				var call, after int
				if _, err := fmt.Sscanf(position, "%d.%d", &call, &after); err != nil {
					if first && position == "" {
						continue // the source did not say where it begins
					}
					t.Fatalf("%s%s: the position of line %d is %q", format, options, number, position)
				}
				first = false
				at := (call+1)*each + after
				if at < number || at < passed {
					t.Fatalf("%s%s: line %d, behind %d, has the position %q", format, options, number, passed, position)
				}
				if options == "" && at != number {
					t.Fatalf("%s: line %d has the position %q", format, number, position)
				}
				passed = at
			}
			if passed != calls*each {
				t.Errorf("%s%s: the last position is behind %d lines, want %d", format, options, passed, calls*each)
			}
		}
	}
}
