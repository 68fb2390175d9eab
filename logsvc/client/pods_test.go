package client

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

// pods is a source of logs, as those of pods: what was written can be read again from a position on,
// which is a number of lines.
type pods struct {
	mu      sync.Mutex
	logs    map[string]*podLog
	changed chan struct{} // closed by the next change
	open    int           // streams that are read
}

type podLog struct{ lines []logsvc.Line }

func newPods(names ...string) *pods {
	p := &pods{logs: map[string]*podLog{}, changed: make(chan struct{})}
	p.change(func() {
		for _, name := range names {
			p.logs[name] = &podLog{}
		}
	})
	return p
}

func (p *pods) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// write adds a line, at most a microsecond after the one before.
func (p *pods) write(pod, text string) {
	p.change(func() {
		l := p.logs[pod]
		l.lines = append(l.lines, logsvc.Line{Time: time.Now(), Text: []byte(text)})
	})
}

func (p *pods) streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *pods) names() []string {
	return slices.Sorted(maps.Keys(p.logs))
}

func (p *pods) Open(_ context.Context, q logsvc.Query) (logsvc.LogStream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.Replica != "" && p.logs[q.Replica] == nil {
		return nil, request.Errorf(subjects.CodeNotFound, "replica %q: not a replica", q.Replica)
	}
	names := p.names()
	if q.Replica != "" {
		names = []string{q.Replica}
	}
	p.open++
	return &podStream{pods: p, q: q, replicas: names, read: map[string]int{}}, nil
}

// podStream reads in one goroutine, as the pods change.
type podStream struct {
	pods     *pods
	q        logsvc.Query
	replicas []string
	read     map[string]int // lines
}

func (s *podStream) Org() string        { return "acme" }
func (s *podStream) Replicas() []string { return s.replicas }

func (s *podStream) Close() {
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	s.pods.open--
}

func (s *podStream) Run(ctx context.Context, out logsvc.Sink) error {
	for first := true; ; first = false {
		batches, names, changed := s.next(first)
		if !first && !slices.Equal(names, s.replicas) {
			s.replicas = names
			if err := out.Replicas(ctx, names); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(batches)) {
			place := ""
			if s.q.Positions {
				place = strconv.Itoa(s.read[name])
			}
			if err := out.Lines(ctx, name, batches[name], false, place); err != nil {
				return err
			}
		}
		if s.q.Follow == logsvc.FollowNever {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next is what was written since the last time, with no lines for a pod that was not read before.
func (s *podStream) next(first bool) (batches map[string][]logsvc.Line, names []string, changed <-chan struct{}) {
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	batches = map[string][]logsvc.Line{}
	for name, l := range s.pods.logs {
		if s.q.Replica != "" && name != s.q.Replica {
			continue
		}
		names = append(names, name)
		from, known := s.read[name]
		at, resumed := s.q.Resume[name]
		switch {
		case known:
		case at.Place != "":
			from, _ = strconv.Atoi(at.Place)
			from += at.Lines
		case first && s.q.Tail >= 0 && (s.q.Resume == nil || resumed):
			from = max(0, len(l.lines)-int(s.q.Tail))
		}
		if len(l.lines) > from || !known {
			batches[name] = l.lines[from:]
		}
		s.read[name] = len(l.lines)
	}
	slices.Sort(names)
	return batches, names, s.pods.changed
}
