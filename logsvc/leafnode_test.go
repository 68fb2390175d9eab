package logsvc_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A leafnode closes its connection to the hub, which everybody on it shares, at a message that is
// larger than its own max_payload. With that as --max-reply nothing of the kind is sent.
func TestLeafnode(t *testing.T) {
	t.Parallel()
	const most, lines = 64 << 10, 5000
	for _, format := range []string{"text", "raw", "json", "proto"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			hub, leaf, intact := suite.Leafnode(t, most)
			source := numbered(lines)
			numberedLines := source.run
			source.run = func(ctx context.Context, q logsvc.Query, out logsvc.Sink) error {
				if err := numberedLines(ctx, q, out); err != nil {
					return err
				}
				if err := out.Note(ctx, subjects.LogNoteReplica, []string{"a"}, strings.Repeat("a long cause ", 50)); err != nil {
					return err
				}
				return out.Lines(ctx, "a", []logsvc.Line{line(1, strings.Repeat("x", 128<<10)), line(2, "last")}, true, "")
			}
			for i := range 2000 {
				source.replicas = append(source.replicas, fmt.Sprintf("replica-%04d", i))
			}
			b := serveOn(t, hub, dial(t, hub.ClientURL()), dial(t, leaf.ClientURL()), source, func(c *logsvc.Config) { c.MaxReply = most })
			got, err := b.nc.Request(b.subject(subjects.LogGet), fmt.Appendf(nil, `{"format": %q, "tail": "all"}`, format), patience)
			if err != nil {
				t.Fatalf("get: %v; %v", err, intact())
			}
			if n := got.Size() - len(got.Subject) - len(got.Reply); n > most || n < most/2 || !bytes.Contains(got.Data, []byte("last")) {
				t.Errorf("the answer has %d bytes: %.100q", n, got.Data)
			}
			msgs, end := b.tail(fmt.Sprintf(`{"format": %q}`, format)).all()
			if n, reason := end.Header.Get(subjects.HeaderLogLines), end.Header.Get(subjects.HeaderLogEnd); n != fmt.Sprint(lines+2) || reason != "eof" {
				t.Errorf("%s lines, the end is %s", n, reason)
			}
			if got := strings.Count(text(msgs), "x"); got < most*9/10 {
				t.Errorf("the long line has %d bytes", got)
			}
			if format == "raw" {
				before, _, _ := strings.Cut(text(msgs), "xxx")
				checkNumbered(t, []byte(before), lines)
			}
			if err := intact(); err != nil {
				t.Error(err)
			}
		})
	}
}
