package logsvc

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/subjects"
)

// podSlots counts the logs that are read.
type podSlots struct {
	most  int
	taken prometheus.Gauge

	mu     sync.Mutex
	active int
}

func (s *podSlots) count() (active, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active, s.most
}

// take takes n slots or none.
func (s *podSlots) take(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active+n > s.most {
		return Errorf(subjects.CodeResourceExhausted, "max-pod-streams: %d of %d Kubernetes log streams are taken, this request needs %d", s.active, s.most, n)
	}
	s.active += n
	s.taken.Add(float64(n))
	return nil
}

func (s *podSlots) give(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active -= n
	s.taken.Sub(float64(n))
}

// podLease is what one stream holds of the slots.
type podLease struct {
	slots *podSlots

	mu     sync.Mutex
	held   int
	closed bool
}

// take takes n slots or none. Nothing can be taken after close.
func (l *podLease) take(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return Errorf(subjects.CodeInternal, "the log stream is closed")
	}
	if err := l.slots.take(n); err != nil {
		return err
	}
	l.held += n
	return nil
}

// give gives one slot back.
func (l *podLease) give() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held > 0 {
		l.held--
		l.slots.give(1)
	}
}

// close gives back what is left.
func (l *podLease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots.give(l.held)
	l.held, l.closed = 0, true
}
