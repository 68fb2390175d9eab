package pods_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// kubernetes makes a source of logs for the place.
func (p *place) kubernetes(change ...func(*pods.Config)) *pods.Source {
	p.t.Helper()
	cfg := pods.Config{REST: p.Config, Namespaces: []string{p.namespace}, MaxPodStreams: 50}
	for _, c := range change {
		c(&cfg)
	}
	k, err := pods.New(cfg, zaptest.NewLogger(p.t), prometheus.NewRegistry())
	if err != nil {
		p.t.Fatal(err)
	}
	k.Hasten()
	return k
}

// heard is what a stream handed out.
type heard struct {
	mu       sync.Mutex
	lines    map[string][]string // by replica
	live     int                 // how many of them came live
	notes    []string
	replicas [][]string
	err      error // for the next lines
}

func (h *heard) Lines(_ context.Context, replica string, lines []logsvc.Line, live bool, _ string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range lines {
		text := string(line.Text)
		if line.Cut > 0 {
			text = fmt.Sprintf("%d bytes and %d cut", len(line.Text), line.Cut)
		}
		h.lines[replica] = append(h.lines[replica], text)
		if line.Time.IsZero() {
			h.notes = append(h.notes, "no time: "+text)
		}
		if live {
			h.live++
		}
	}
	return h.err
}

func (h *heard) Replicas(_ context.Context, names []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.replicas = append(h.replicas, slices.Clone(names))
	return nil
}

func (h *heard) Note(_ context.Context, note subjects.LogNote, replicas []string, text string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, strings.TrimLeft(strings.Join(slices.Sorted(slices.Values(replicas)), ",")+" ", " ")+string(note)+": "+text)
	return nil
}

func (h *heard) of(pod *testenv.Pod) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines[pod.Name()])
}

func (h *heard) noted(part string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.ContainsFunc(h.notes, func(note string) bool { return strings.Contains(note, part) }) {
		return fmt.Errorf("notes are %q, want one with %q", h.notes, part)
	}
	return nil
}

func (h *heard) noNotes(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.notes) > 0 {
		t.Errorf("got notes %q", h.notes)
	}
}

// onlyNotes fails if there are notes without part.
func (h *heard) onlyNotes(t *testing.T, part string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.notes, func(note string) bool { return !strings.Contains(note, part) }) {
		t.Errorf("got notes %q, want only such with %q", h.notes, part)
	}
}

// tailing is a stream at work.
type tailing struct {
	*heard
	t      *testing.T
	stream logsvc.LogStream
	cancel context.CancelFunc
	done   chan error
}

// read opens a stream and runs it.
func read(t *testing.T, k *pods.Source, q logsvc.Query) *tailing {
	t.Helper()
	stream, err := k.Open(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &tailing{heard: &heard{lines: map[string][]string{}}, t: t, stream: stream, cancel: cancel, done: make(chan error, 1)}
	go func() {
		defer stream.Close()
		r.done <- stream.Run(ctx, r)
	}()
	t.Cleanup(func() {
		cancel()
		_ = r.ended()
		soon(t, "the slots come back", func() error {
			if active, _ := k.PodStreams(); active != 0 {
				return fmt.Errorf("%d are taken", active)
			}
			return nil
		})
	})
	return r
}

// ended waits for the end.
func (r *tailing) ended() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(suite.Patience):
		r.t.Error("the stream does not end")
		return nil
	}
}

// end waits for an end without an error.
func (r *tailing) end() {
	r.t.Helper()
	if err := r.ended(); err != nil {
		r.t.Errorf("the stream ended: %v", err)
	}
}

// wait waits until a replica's lines are those. It has no bound while lines come, and fails as soon
// as one differs.
func (r *tailing) wait(pod *testenv.Pod, want ...string) {
	r.t.Helper()
	suite.Progress(r.t, suite.Patience, "lines of "+pod.Name(), int64(len(want)), func() int64 {
		got := r.of(pod)
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		if i < len(got) {
			r.t.Fatalf("got %s, want %s, the same up to %d, then %s", short(got), short(want), i, short(got[i:]))
		}
		return int64(i)
	})
}

// short shows lines so that many numbered ones can be told apart.
func short(lines []string) string {
	if len(lines) <= 20 {
		return fmt.Sprintf("%d %q", len(lines), lines)
	}
	return fmt.Sprintf("%d %q … %q", len(lines), lines[:5], lines[len(lines)-5:])
}

func numbers(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

func all(a *app) logsvc.Query { return logsvc.Query{App: a.id, Tail: -1} }

func refused(t *testing.T, err error, code subjects.Code, text string) {
	t.Helper()
	var refusal *request.Error
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want an Error", err)
	}
	if refusal.Code != code || refusal.Text != text {
		t.Errorf("got %s %q, want %s %q", refusal.Code, refusal.Text, code, text)
	}
}

func (h *heard) lastReplicas(names ...string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(names)
	if len(h.replicas) == 0 || !slices.Equal(h.replicas[len(h.replicas)-1], names) {
		return fmt.Errorf("replicas were %q, want %q", h.replicas, names)
	}
	return nil
}
