package e2e_test

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// stern is compared as well where its path is given.
var stern = flag.String("stern", "", "the path of stern, which BenchmarkLogs and BenchmarkLive compare as well") //nolint:gochecknoglobals // a flag

// million is how many lines the benchmarks read at a time.
const million = 1_000_000

// BenchmarkLogs reads the same log of a million lines of 120 bytes with
// `appbridge logs`, with `kubectl logs` and with stern, one after the other, and compares:
// kubectl is the limit, since appbridge reads through the same API server. The
// processor time of appbridge is that of the client, of the bridge and of the NATS
// server in it; what the API server needs is not in it, nor in that of the others.
func BenchmarkLogs(b *testing.B) {
	w := sharedWorld(b)
	id, service := w.app(b)
	pod := w.podOf(b, service, service+"-1", testenv.InMemory)
	if !pod.FillPast(million, 100*time.Microsecond, numbered) {
		b.Fatal("the pod does not run")
	}
	readers := map[string][]string{
		"appbridge": {"appbridge", "logs", id.String(), "--tail", strconv.Itoa(million)},
		"kubectl":   {"kubectl", "logs", "--namespace", testenv.DefaultNamespace, pod.Name(), "--container", "app"},
	}
	if *stern != "" {
		readers["stern"] = sternOf(pod, "--no-follow")
		c, err := w.readLines(b.Context(), *stern, readers["stern"][1:]...)
		if err != nil || c.wrong != nil || c.next != million {
			b.Fatalf("stern prints %d lines: %v, %v", c.next, c.wrong, err)
		}
	}
	took, cpu := map[string]time.Duration{}, map[string]time.Duration{}
	for b.Loop() {
		for name, command := range readers {
			before := processorTime(b, w.bridge.PID())
			t, c := w.discard(b, command[0], command[1:]...)
			took[name] += t
			cpu[name] += c
			if name == "appbridge" {
				cpu[name] += processorTime(b, w.bridge.PID()) - before
			}
		}
	}
	lines := float64(b.N) * million
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took["kubectl"].Seconds()/took["appbridge"].Seconds(), "of-kubectl")
	for name := range readers {
		b.ReportMetric(lines/took[name].Seconds(), name+"-lines/s")
		b.ReportMetric(cpu[name].Seconds()/float64(b.N), name+"-cpu-s/Mlines")
	}
}

// sternOf is stern for the log of one pod, without what it adds to lines.
func sternOf(pod *testenv.Pod, more ...string) []string {
	return append([]string{
		*stern, "--namespace", testenv.DefaultNamespace, "--container", "app", "--output", "raw", "--only-log-lines", "--color", "never",
		"^" + pod.Name() + "$",
	}, more...)
}

// BenchmarkStreams reads ten million lines, a million at a time as one stream, and
// as a hundred streams of a hundred thousand lines at the same time.
func BenchmarkStreams(b *testing.B) {
	const streams, rounds = 100, 10
	w := sharedWorld(b)
	id, service := w.app(b)
	pod := w.podOf(b, service, service+"-1", testenv.InMemory)
	if !pod.FillPast(million, 100*time.Microsecond, numbered) {
		b.Fatal("the pod does not run")
	}
	read := func(streams, lines int) time.Duration {
		var got atomic.Int64
		began := time.Now()
		var readers errgroup.Group
		for range streams {
			readers.Go(func() error {
				nc, err := nats.Connect(w.NATS, nats.Timeout(patience))
				if err != nil {
					return err
				}
				defer nc.Close()
				follow := false
				end, err := client.Tail(b.Context(), nc, client.Request{
					App: id, Tail: &lines, Follow: &follow, Format: subjects.LogFormatRaw, Prefix: subjects.DefaultPrefix,
				}, func(*client.Message) error { return nil })
				got.Add(end.Lines)
				return err
			})
		}
		if err := readers.Wait(); err != nil {
			b.Fatal(err)
		}
		if got.Load() != int64(streams*lines) {
			b.Fatalf("%d lines of %d", got.Load(), streams*lines)
		}
		return time.Since(began)
	}
	var one, hundred time.Duration
	for b.Loop() {
		for range rounds {
			one += read(1, million)
		}
		hundred += read(streams, rounds*million/streams)
	}
	lines := float64(b.N) * rounds * million
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(lines/one.Seconds(), "lines/s")
	b.ReportMetric(lines/hundred.Seconds(), "hundred-lines/s")
	b.ReportMetric(one.Seconds()/hundred.Seconds(), "hundred-of-one")
}

// BenchmarkLive follows the same log with `appbridge logs`, with the stock nats CLI, with
// `kubectl logs` and with stern, all at one time, and measures how long it takes from the write of a line until
// each of them prints it. The lines are further apart than the service gathers a busy log's.
func BenchmarkLive(b *testing.B) {
	const lines = 200 // of one iteration
	w := sharedWorld(b)
	id, service := w.app(b)
	pod := w.pod(b, service, service+"-1")
	readers := map[string]*liveReader{
		"appbridge": w.live(b, "appbridge", "logs", id.String(), "--follow"),
		"nats":      w.live(b, "nats", "req", "--raw", "--replies=0", "--timeout=1h", subjectOf(b, subjects.LogTail, id), `{"follow": true}`),
		"kubectl":   w.live(b, "kubectl", "logs", "--namespace", testenv.DefaultNamespace, pod.Name(), "--container", "app", "--follow"),
	}
	if *stern != "" {
		readers["stern"] = w.live(b, *stern, sternOf(pod)[1:]...)
	}
	n := 0
	write := func() {
		text := numbered(n)
		n++
		began := time.Now()
		pod.Write(text)
		for _, r := range readers {
			r.wait(b, text, began)
		}
	}
	write() // they have all begun
	for _, r := range readers {
		r.took = nil
	}
	for b.Loop() {
		for range lines {
			if err := testenv.Pause(b.Context(), 60*time.Millisecond+rand.N(40*time.Millisecond)); err != nil {
				b.Fatal(err)
			}
			write()
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, r := range readers {
		slices.Sort(r.took)
		b.ReportMetric(milliseconds(r.took[len(r.took)/2]), name+"-p50-ms")
		b.ReportMetric(milliseconds(r.took[len(r.took)*99/100]), name+"-p99-ms")
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// liveReader is a command that prints a log as it is written.
type liveReader struct {
	name  string
	lines chan printedLine
	took  []time.Duration
}

type printedLine struct {
	text string
	at   time.Time
}

// live starts a command, which ends with the benchmark.
func (w *world) live(tb testing.TB, name string, args ...string) *liveReader {
	tb.Helper()
	cmd := w.Prepare(exec.Command(name, args...))
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	r := &liveReader{name: name, lines: make(chan printedLine, 1000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(r.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			r.lines <- printedLine{lines.Text(), time.Now()}
		}
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range r.lines { // until the output ends
		}
		<-done
		_ = cmd.Wait() // it was killed
	})
	return r
}

// wait waits until a line is printed, and records how long it took.
func (r *liveReader) wait(tb testing.TB, text string, began time.Time) {
	tb.Helper()
	limit := time.After(patience)
	for {
		select {
		case line, open := <-r.lines:
			if !open {
				tb.Fatalf("%s ended", r.name)
			}
			if line.text == text {
				r.took = append(r.took, line.at.Sub(began))
				return
			}
		case <-limit:
			tb.Fatalf("%s does not print %q", r.name, text)
		}
	}
}

// discard runs a command whose output nobody reads.
func (w *world) discard(tb testing.TB, name string, args ...string) (took, cpu time.Duration) {
	tb.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer null.Close()
	cmd := w.Prepare(exec.CommandContext(tb.Context(), name, args...))
	var complaints strings.Builder
	cmd.Stdout, cmd.Stderr = null, &complaints
	began := time.Now()
	if err := cmd.Run(); err != nil {
		tb.Fatalf("%s: %v\n%s", cmd, err, complaints.String())
	}
	return time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// processorTime is what a process has used so far.
func processorTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	const ticks = 100 // a second, on every Linux
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		tb.Fatal(err)
	}
	// The name, in parentheses, may hold anything.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	sum := 0
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(field)
		if err != nil {
			tb.Fatal(fmt.Errorf("processor time of %d: %w", pid, err))
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}
