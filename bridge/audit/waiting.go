package audit

import (
	"maps"
	"time"
)

const (
	// maxRounds is over how many complete rounds an app may wait for the same, and minWait for how long
	// at least, before it is judged like any other.
	maxRounds = 2
	minWait   = 30 * time.Second
)

// waiting is what apps wait for, by key, since when. Its zero value has none.
type waiting struct {
	round int // the complete rounds so far
	apps  map[string]wait
}

type wait struct {
	what  string
	since time.Time
	round int
	seen  int // the round in which it was seen last
}

// note notes what an app waits for, and reports whether it has been the same for too long.
func (w *waiting) note(key, what string) (expired bool) {
	if what == "" {
		delete(w.apps, key)
		return false
	}
	had, ok := w.apps[key]
	if !ok || had.what != what {
		had = wait{what: what, since: time.Now(), round: w.round}
	}
	had.seen = w.round
	if w.apps == nil {
		w.apps = map[string]wait{}
	}
	w.apps[key] = had
	return w.round-had.round >= maxRounds && time.Since(had.since) >= minWait
}

// end ends a round. One that is incomplete begins all waits again: NATS or Kubernetes was unavailable.
func (w *waiting) end(complete bool) {
	if !complete {
		w.apps = nil
		return
	}
	maps.DeleteFunc(w.apps, func(_ string, had wait) bool { return had.seen < w.round })
	w.round++
}
