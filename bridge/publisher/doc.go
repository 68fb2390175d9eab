// Package publisher appends the changes of apps to the stream of events, in order and once.
//
//	             Queue                 Publisher
//	source ──► a: u u d ──┐   ┌──────────────────────────┐
//	           b: c       ├──►│ take ► encode ► pipeline │──► stream
//	           c: u u ────┘   └────────────▲─────────────┘      │
//	                                       └── readOutcomes ◄───┘
//
// A Queue holds the pending changes of each app in order. It is bounded: updates merge, and at the
// hard limit all pending changes are dropped (a resync finds what they led to). It outlives its
// session: the next one takes over the changes that still follow what was published (queue.go).
// It forgets apps that were deleted a while ago (evict.go).
//
// A Publisher takes the changes off one Queue, makes their events (prepare.go) and appends them
// with up to 256 in flight, at most one of each app (pipeline.go). The fence makes the stream store
// an event only behind the app's previous event and behind the append before it. On any answer but
// the expected one, sending stops; the publisher reads from the stream's leader what was stored
// (recover.go; fence.go lists every answer and what follows from it) and goes on, or ends the
// session with an error that has what the next one starts from.
//
// An event that the stream acknowledged is handed to the caller, so that it need not be read back.
//
// The package reads and appends events. It knows nothing of sessions, the bucket or Kubernetes: the
// caller hands in what it needs as a Config.
package publisher
