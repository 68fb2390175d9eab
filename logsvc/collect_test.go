package logsvc

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// An answer without lines is a whole message, too.
func TestAnswerEmpty(t *testing.T) {
	t.Parallel()
	req := &logRequest{query: Query{App: checkout}, format: subjects.LogFormatJSON}
	msg, n, err := newCollector(req, nil, &memoryUse{}, 1<<20, nil, testMetrics()).answer(newEncoder(req, ""))
	if err != nil || n != 0 || string(msg.Data) != "{\"batches\":{}}\n" {
		t.Errorf("got %q, %d lines, %v", msg.Data, n, err)
	}
}

// An answer whose lines do not fit into a message is not encoded once for each line that
// is too many, whatever the lines are.
func TestAnswerCost(t *testing.T) { //nolint:paralleltest // counts allocations
	const most = 256 << 10
	req := &logRequest{query: Query{App: checkout}, format: subjects.LogFormatJSON}
	c := newCollector(req, nil, &memoryUse{}, most, nil, testMetrics())
	var lines []Line
	for range 3000 {
		lines = append(lines, Line{Time: time.Now(), Text: []byte("x")})
	}
	// Almost all of a message, as JSON escapes it.
	lines = append(lines, Line{Time: time.Now(), Text: bytes.Repeat([]byte{1}, most/7)}, Line{Time: time.Now(), Text: bytes.Repeat([]byte{1}, most/50)})
	if err := c.Lines(t.Context(), "r", lines, false, ""); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	msg, n, err := c.answer(newEncoder(req, ""))
	runtime.ReadMemStats(&after)
	if err != nil || len(msg.Data) > most || len(msg.Data) < most*9/10 || n < 10 {
		t.Fatalf("got %d bytes, %d lines, %v", len(msg.Data), n, err)
	}
	if cost := after.TotalAlloc - before.TotalAlloc; cost > 200*most {
		t.Errorf("%d lines in %d bytes took %d MiB", n, len(msg.Data), cost>>20)
	}
}
