package pods

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

// togetherTime is how long after the last note about a replica that has ended the notes wait for those
// about others.
const togetherTime = 5 * time.Second

// endedReplicas is the Sink of the replicas whose pods have ended, such as thirty evicted ones. Those
// with the same note share it: it is sent once each of them has a note or is read.
type endedReplicas struct {
	logsvc.Sink

	mu      sync.Mutex
	reading map[string]bool // false: the replica has a note that is not sent
	notes   []endedNote     // not sent

	changed chan struct{} // holds one token after a change
}

type endedNote struct {
	text     string
	replicas []string
}

func newEndedReplicas(out logsvc.Sink) *endedReplicas {
	return &endedReplicas{Sink: out, reading: map[string]bool{}, changed: make(chan struct{}, 1)}
}

// add is called before run.
func (e *endedReplicas) add(replica string) { e.reading[replica] = true }

// Note implements Sink.
func (e *endedReplicas) Note(ctx context.Context, note subjects.LogNote, replicas []string, text string) error {
	if note != subjects.LogNoteReplica {
		return e.Sink.Note(ctx, note, replicas, text)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, replica := range replicas {
		e.reading[replica] = false
	}
	i := slices.IndexFunc(e.notes, func(n endedNote) bool { return n.text == text })
	if i < 0 {
		i, e.notes = len(e.notes), append(e.notes, endedNote{text: text})
	}
	e.notes[i].replicas = append(e.notes[i].replicas, replicas...)
	e.signal()
	return context.Cause(ctx)
}

// done is called when a replica is read.
func (e *endedReplicas) done(replica string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.reading, replica)
	e.signal()
}

func (e *endedReplicas) signal() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// run sends the notes until all replicas are read.
func (e *endedReplicas) run(ctx context.Context) error {
	var late <-chan time.Time // set while notes wait
	for {
		isLate := false
		select {
		case <-e.changed:
		case <-late:
			isLate = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		notes, waiting, over := e.take(isLate)
		for _, n := range notes {
			if err := e.Sink.Note(ctx, subjects.LogNoteReplica, n.replicas, n.text); err != nil {
				return err
			}
		}
		switch {
		case over:
			return nil
		case !waiting:
			late = nil
		default:
			late = time.After(togetherTime)
		}
	}
}

// take returns the notes that are due. waiting reports whether there are others.
func (e *endedReplicas) take(late bool) (notes []endedNote, waiting, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	over = len(e.reading) == 0
	for _, without := range e.reading {
		if without && !late {
			return nil, len(e.notes) > 0, false
		}
	}
	notes, e.notes = e.notes, nil
	for replica := range e.reading {
		e.reading[replica] = true
	}
	return notes, false, over
}
