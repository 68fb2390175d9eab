package watch

import (
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// afterFunc calls do once d is over, unless stop is called before.
type afterFunc func(d time.Duration, do func()) (stop func() bool)

func afterTime(d time.Duration, do func()) (stop func() bool) { return time.AfterFunc(d, do).Stop }

// SetAfter replaces the timers of a source that no informer feeds yet.
func (s *Source) SetAfter(after afterFunc) { s.standIns.after, s.settling.after = after, after }

// appTimers are timers, one at most for each app. The source's mu guards them.
type appTimers struct {
	after  afterFunc
	apps   map[subjects.AppID]*appTimer
	closed bool
}

type appTimer struct {
	at   int64 // when it is due, in seconds since 1970, where that is known
	stop func() bool
}

func newAppTimers() appTimers {
	return appTimers{after: afterTime, apps: map[subjects.AppID]*appTimer{}}
}

func (s *appTimers) runs(id subjects.AppID) bool { return s.apps[id] != nil }

// start has due called once d is over, for an app without a timer. It returns nil after close.
func (s *appTimers) start(id subjects.AppID, d time.Duration, due func(*appTimer)) *appTimer {
	if s.closed {
		return nil
	}
	t := &appTimer{}
	s.apps[id] = t
	t.stop = s.after(d, func() { due(t) })
	return t
}

func (s *appTimers) end(id subjects.AppID) {
	if t := s.apps[id]; t != nil {
		t.stop()
		delete(s.apps, id)
	}
}

// expire removes a timer that is due. It returns false for one that was ended just before.
func (s *appTimers) expire(id subjects.AppID, t *appTimer) bool {
	if s.apps[id] != t {
		return false
	}
	delete(s.apps, id)
	return true
}

// close ends the timers. None starts after that.
func (s *appTimers) close() {
	s.closed = true
	for id := range s.apps {
		s.end(id)
	}
}
