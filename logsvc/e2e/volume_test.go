package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// numbered is a line of 120 bytes with its end.
func numbered(i int) string {
	return fmt.Sprintf("%08d %s", i, strings.Repeat("abcdefghij", 11))
}

// counter reads numbered lines and says what is wrong with them.
type counter struct {
	next  int
	notes []string
	wrong error
}

func (c *counter) read(r io.Reader) error {
	lines := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch line[0] {
		case '#':
			c.notes = append(c.notes, string(line))
			continue
		case '\n': // `nats req` puts one behind every message
			continue
		}
		// The text of the line was seen to be right when it was written.
		n, err := strconv.Atoi(string(line[:8]))
		if (err != nil || n != c.next || len(line) != 120) && c.wrong == nil {
			c.wrong = fmt.Errorf("line %d is %.40q with %d bytes", c.next, line, len(line))
		}
		c.next++
	}
}

// readLines runs a command and counts what it prints.
func (w *world) readLines(ctx context.Context, name string, args ...string) (*counter, error) {
	cmd := w.Prepare(exec.CommandContext(ctx, name, args...))
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &counter{}
	err = errors.Join(c.read(out), cmd.Wait())
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", cmd, err, complaints.String())
	}
	return c, err
}

// Two million lines arrive, all of them and in order: through `appbridge logs`
// as fast as it reads, through the stock client at the pace that it stands.
func TestTwoMillionLines(t *testing.T) {
	t.Parallel()
	const n = 2_000_000
	w := sharedWorld(t)
	id, service := w.app(t)
	pod := w.podOf(t, service, service+"-1", testenv.InMemory)
	if !pod.FillPast(n, 100*time.Microsecond, numbered) {
		t.Fatal("the pod does not run")
	}
	subject := subjectOf(t, subjects.LogTail, id)
	for name, args := range map[string][]string{
		"appbridge": {"logs", id.String(), "--tail", strconv.Itoa(n)},
		"nats":      {"req", "--raw", "--replies=0", "--timeout=10m", subject, `{"tail": 2000000, "follow": false}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			c, err := w.readLines(t.Context(), name, args...)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d lines in %s", c.next, time.Since(began).Round(time.Millisecond))
			if c.wrong != nil || c.next != n {
				t.Errorf("%d lines of %d arrived, %v, notes %q", c.next, n, c.wrong, c.notes)
			}
		})
	}
}

func subjectOf(tb testing.TB, op subjects.LogOp, id subjects.AppID) string {
	tb.Helper()
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		tb.Fatal(err)
	}
	subject, err := names.Logs(op, id)
	if err != nil {
		tb.Fatal(err)
	}
	return subject
}

// resident is the memory of a process, in bytes.
func resident(tb testing.TB, pid int) int {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		tb.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		tb.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// A line of 100 MB without an end is cut, marked and counted, in bounded memory.
func TestHugeLine(t *testing.T) {
	t.Parallel()
	const huge = 100 << 20
	w := ownWorld(t) // whose memory is this test's alone
	id, service := w.app(t)
	pod := w.pod(t, service, service+"-1")
	pod.Write("before")
	pod.WriteRaw([]byte(strings.Repeat("x", huge)))
	before := resident(t, w.bridge.PID())
	// Not by a number of lines: the kubelet counts the pieces that a long one is in.
	c := w.Start(t, "appbridge logs "+id.String()+" -f --since 1h")
	c.WaitFor("before\n")
	pod.WriteRaw([]byte("\n"))
	pod.Write("after")
	c.WaitFor("\nafter\n")
	if grown := resident(t, w.bridge.PID()) - before; grown > huge/2 {
		t.Errorf("the bridge grew by %d MiB", grown>>20)
	}
	lines := strings.Split(c.Interrupt(), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines", len(lines))
	}
	kept := strings.Count(lines[1], "x")
	if want := fmt.Sprintf(" [appbridge: %d bytes cut]", huge-kept); kept < 1000 || kept > 1<<20 || !strings.HasSuffix(lines[1], want) {
		t.Errorf("%d bytes are kept, the end is %q, want %q", kept, lines[1][max(0, len(lines[1])-60):], want)
	}
	body, _, err := w.bridge.Get(t.Context(), "/metrics")
	if err != nil || strings.Contains(body, "appbridge_log_lines_cut_total 0\n") {
		t.Errorf("the cut is not counted: %v", err)
	}
}

// A stock client that is frozen in the middle of a flood harms neither the
// others nor the events nor the kubelet, and loses its slot in the end.
func TestFrozenClient(t *testing.T) {
	t.Parallel()
	w := ownWorld(t)
	id, service := w.app(t)
	flooded := w.pod(t, service, service+"-1")
	frozen := w.Start(t, "exec nats req --raw --replies=0 --timeout=1h "+subjectOf(t, subjects.LogTail, id)+` '{"follow": true}'`)
	frozen.WaitFor("# appbridge: replicas")
	frozen.Signal(syscall.SIGSTOP)

	other, otherService := w.app(t)
	quiet := w.pod(t, otherService, otherService+"-1")
	reader := w.Start(t, "appbridge logs -f "+other.String())
	events := w.Start(t, "nats sub 'flyte.apps.events.>' --headers-only")
	before := resident(t, w.bridge.PID())
	began, sent, i := time.Now(), 0, 0
	for ; time.Since(began) < patience; i++ {
		// 20 MB/s, five times what the stock client is sent.
		lines := make([]string, 1000)
		for j := range lines {
			lines[j] = numbered(j)
		}
		flooded.Write(lines...)
		sent += len(lines)
		if i%20 == 0 {
			asked := time.Now()
			quiet.Write(fmt.Sprintf("quiet %d", i))
			reader.WaitFor(fmt.Sprintf("quiet %d\n", i))
			if d := time.Since(asked); d > time.Minute {
				t.Errorf("a line of another app took %s", d)
			}
			stats, err := w.stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if stats.ActiveStreams == 1 {
				break
			}
		}
		if i == 100 {
			late, _ := w.app(t)
			events.WaitFor(late.Name)
		}
		<-time.After(6 * time.Millisecond)
	}
	if d := time.Since(began); d >= patience {
		t.Errorf("the frozen client keeps its slot")
	} else {
		t.Logf("the frozen client lost its slot after %s and %d lines; the bridge grew by %d MiB", d.Round(time.Millisecond), sent, (resident(t, w.bridge.PID())-before)>>20)
	}
	eventually(t, "the kubelet is not held back", func() error {
		if n := flooded.Followers(); n != 0 {
			return fmt.Errorf("%d followers", n)
		}
		return nil
	})
	frozen.Signal(syscall.SIGKILL)
	reader.Interrupt()
	events.Interrupt()
}
