package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { suite.Main(m, func() error { return nil }) }

// program builds the auditor.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// kills is how often the auditor is killed.
func kills() int {
	if testing.Short() {
		return 5
	}
	return 50
}

// An auditor that is killed at any instant, again and again, while events are published, has every
// event of the stream once: rows, order, headers and bodies are those of the stream.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	url, path, binary := jetStream(t), filepath.Join(t.TempDir(), "apps.db"), program(t)
	w := newWriter(t, url)
	publish, stop := context.WithCancel(t.Context())
	published := make(chan error, 1)
	t.Cleanup(stop)
	go func() { published <- w.publish(publish) }()

	file, err := open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.close() }()
	busy := 0
	for i := range kills() {
		before := rows(t, file)
		cmd := exec.Command(binary, "--nats-url", url, "--file", path, "record")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if i%5 > 0 { // every fifth may be killed before it has written anything
			suite.Eventually(t, suite.Patience, "the auditor writes", func() error {
				if rows(t, file) == before {
					return errors.New("no new row")
				}
				return nil
			})
		}
		if err := testenv.Pause(t.Context(), time.Duration(rand.IntN(30_000))*time.Microsecond); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		if rows(t, file) > before {
			busy++
		}
	}
	stop()
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	want := content(t, w.js)
	last := exec.Command(binary, "--nats-url", url, "--file", path, "record")
	if err := last.Start(); err != nil {
		t.Fatal(err)
	}
	suite.Eventually(t, suite.Patience, "the auditor catches up", func() error {
		// A notice can be the last message.
		if got, losses := rows(t, file), count(t, file, "losses"); got < len(want) || losses < w.notices {
			return fmt.Errorf("%d of %d events, %d of %d losses", got, len(want), losses, w.notices)
		}
		return nil
	})
	if err := errors.Join(last.Process.Signal(os.Interrupt), last.Wait()); err != nil {
		t.Fatal(err)
	}
	compare(t, file, want)
	if losses := count(t, file, "losses"); losses != w.notices {
		t.Errorf("%d losses, want %d", losses, w.notices)
	}
	t.Logf("killed %d times, %d of them while it wrote; %d events, %d notices", kills(), busy, len(want), w.notices)
}

// publish appends events, and a notice now and then, until ctx ends.
func (w *writer) publish(ctx context.Context) error {
	for n := 1; ctx.Err() == nil; n++ {
		id := subjects.AppID{Project: "shop", Domain: "production", Name: fmt.Sprintf("app.%d", n%17)}
		status := []string{"PENDING", "ACTIVE", "FAILED", "ACTIVE", ""}[n/17%5]
		if _, exists := w.status[id]; status == "" && !exists {
			continue
		}
		if _, err := w.event(context.WithoutCancel(ctx), id, status); err != nil {
			return err
		}
		if n%1000 == 0 {
			if _, _, err := w.lose(context.WithoutCancel(ctx), 3); err != nil {
				return err
			}
		}
	}
	return nil
}

func rows(t *testing.T, file *store) int { t.Helper(); return count(t, file, "events") }

func count(t *testing.T, file *store, table string) (n int) {
	t.Helper()
	if err := file.db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// row is an event as the stream and the file have it.
type row struct {
	sequence      uint64
	stored        int64
	subject, body string
	header        map[string][]string
}

// content are the events of the stream, one message after another as its leader has them.
func content(t *testing.T, js jetstream.JetStream) (events []row) {
	t.Helper()
	stream, err := js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for left := stream.CachedInfo().State.Msgs; left > 0; left-- {
		msg, err := consumer.Next(jetstream.FetchMaxWait(suite.Patience))
		if err != nil {
			t.Fatal(err)
		}
		at, err := msg.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(msg.Subject(), ".") == 6 {
			events = append(events, row{at.Sequence.Stream, at.Timestamp.UnixNano(), msg.Subject(), string(msg.Data()), msg.Headers()})
		}
	}
	return events
}

func compare(t *testing.T, file *store, want []row) {
	t.Helper()
	found, err := file.db.QueryContext(t.Context(), "SELECT sequence, stored, subject, body, header FROM events ORDER BY history, sequence")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	n := 0
	for ; found.Next(); n++ {
		var got row
		var header string
		if err := found.Scan(&got.sequence, &got.stored, &got.subject, &got.body, &header); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(header), &got.header); err != nil {
			t.Fatal(err)
		}
		if n >= len(want) {
			t.Fatalf("row %d has event %d, which the stream does not have", n, got.sequence)
		}
		w := want[n]
		if got.sequence != w.sequence || got.stored != w.stored || got.subject != w.subject || got.body != w.body ||
			!maps.EqualFunc(got.header, w.header, func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Fatalf("row %d is\n%+v, want\n%+v", n, got, w)
		}
	}
	if err := found.Err(); err != nil || n != len(want) {
		t.Errorf("%d rows, want %d (%v)", n, len(want), err)
	}
}

// Two auditors on one file: one of them ends, and no event is there twice.
func TestOneAuditorPerFile(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	file, err := open(ctx, filepath.Join(t.TempDir(), "apps.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.close() }()
	w := newWriter(t, jetStream(t))
	if _, err := w.event(ctx, subjects.AppID{Project: "shop", Domain: "production", Name: "x"}, "ACTIVE"); err != nil {
		t.Fatal(err)
	}
	recordUntil(t, w.js, file, 1)
	at, err := file.position(ctx)
	if err != nil {
		t.Fatal(err)
	}
	late := at
	late.Sequence--
	if _, err := file.write(ctx, late, nil); !errors.Is(err, errShared) {
		t.Errorf("got %v, want %v", err, errShared)
	}
	if again, err := file.position(ctx); err != nil || again != at {
		t.Errorf("got %v, %v, want %v", again, err, at)
	}
}

func recordUntil(t *testing.T, js jetstream.JetStream, file *store, want int) {
	t.Helper()
	recordWith(t, js, file, appwatch.Options{}, func() error {
		if n := rows(t, file); n != want {
			return fmt.Errorf("%d rows, want %d", n, want)
		}
		return nil
	})
}
