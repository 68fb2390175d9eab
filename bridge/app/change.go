package app

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Change is a change of an app that is to be published.
type Change struct {
	State  State
	Remove bool // the app is gone; there is no state then
	// RemovedUID is that of the removed object, empty on a removal that a comparison found.
	RemovedUID types.UID

	DeletedVersion    string    // resourceVersion of an observed deletion
	ChangedAt         time.Time // of a removal: the newest time the deleted object carried
	FinalStateUnknown bool
	Synthesized       bool
	Merged            int // updates that this one stands for beside itself

	Mergeable bool // an update: not the first state after nothing
	Sent      bool // a publisher has it, or had it: its outcome may be open
	Observed  time.Time
	Size      int64
	Resynced  func() // called once the change is published, if it came from a resync
}

// NewUpsert is the change to a state. first is true if the app did not exist before, so that this
// change must not merge into a later one.
func NewUpsert(s State, first bool) *Change {
	c := &Change{State: s, Mergeable: !first, Observed: time.Now()}
	c.Size = sizeOf(s.Service)
	return c
}

// sizeOf estimates what keeping an object costs, in bytes of resident memory: twice what it takes
// itself, since the collector lets the heap grow to twice what lives in it.
func sizeOf(svc *CachedService) int64 {
	if svc == nil {
		return 1024
	}
	return 2 * int64(1024+len(svc.app.data))
}

// MissedDelete is the deletion of an app that a comparison found.
func MissedDelete() *Change {
	return &Change{Remove: true, Synthesized: true, FinalStateUnknown: true, Observed: time.Now(), Size: sizeOf(nil)}
}

// Observation is how a change was seen; the rest is of an object that is gone.
type Observation struct {
	Relisted bool // by a list: there may have been states in between

	DeletedVersion    string
	ChangedAt         time.Time
	FinalStateUnknown bool
}

// Upsert is the change to a state that was observed.
func Upsert(now State, first bool, seen Observation) *Change {
	c := NewUpsert(now, first)
	c.Synthesized = seen.Relisted
	return c
}

// Removal is the change of an app in state was to none.
func Removal(was State, gone Observation) *Change {
	c := &Change{
		Remove:            true,
		RemovedUID:        was.Service.UID,
		DeletedVersion:    gone.DeletedVersion,
		ChangedAt:         gone.ChangedAt,
		FinalStateUnknown: gone.FinalStateUnknown,
		Synthesized:       gone.Relisted,
		Observed:          time.Now(),
		Size:              sizeOf(nil),
	}
	if last := was.Service.LastChange; c.ChangedAt.Before(last) {
		c.ChangedAt = last
	}
	return c
}
