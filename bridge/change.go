package bridge

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// change is a change of an app that is to be published.
type change struct {
	state  state
	remove bool // the app is gone; there is no state then
	// uid is that of the removed object, empty on a removal that a comparison found.
	uid types.UID

	deletedVersion    string    // resourceVersion of an observed deletion
	changedAt         time.Time // of a removal: the newest time the deleted object carried
	finalStateUnknown bool
	synthesized       bool
	merged            int // updates that this one stands for beside itself

	mergeable bool // an update: not the first state after nothing
	sent      bool // a publisher has it, or had it: its fate may be open
	observed  time.Time
	size      int64
	resynced  func() // called once the change is published, if it came from a resync
}

// newUpsert is the change to a state. first says that the app was not there
// before, so that this change must not merge into a later one.
func newUpsert(s state, first bool) *change {
	c := &change{state: s, mergeable: !first, observed: time.Now()}
	c.size = sizeOf(s.service)
	return c
}

// sizeOf estimates what keeping an object costs, in bytes of resident memory:
// twice what it takes itself, since the collector lets the heap grow to twice
// what lives in it.
func sizeOf(svc *kservice.Service) int64 {
	if svc == nil {
		return 1024
	}
	n := 1024
	for k, v := range svc.Annotations {
		n += len(k) + len(v)
	}
	for _, c := range svc.Status.Conditions {
		n += len(c.Reason) + len(c.Message) + 128
	}
	return 2 * int64(n)
}

// missedDelete is the deletion of an app that a comparison found.
func missedDelete() *change {
	return &change{remove: true, synthesized: true, finalStateUnknown: true, observed: time.Now(), size: sizeOf(nil)}
}

// observation is how a change was seen; the rest is of an object that is gone.
type observation struct {
	relisted bool // by a list: there may have been states in between

	deletedVersion    string
	changedAt         time.Time
	finalStateUnknown bool
}

func upsertOf(now state, first bool, seen observation) *change {
	c := newUpsert(now, first)
	c.synthesized = seen.relisted
	return c
}

func removalOf(was state, gone observation) *change {
	c := &change{
		remove:            true,
		uid:               was.service.UID,
		deletedVersion:    gone.deletedVersion,
		changedAt:         gone.changedAt,
		finalStateUnknown: gone.finalStateUnknown,
		synthesized:       gone.relisted,
		observed:          time.Now(),
		size:              sizeOf(nil),
	}
	if last := kservice.LastChange(was.service); c.changedAt.Before(last) {
		c.changedAt = last
	}
	return c
}
