// Package projector keeps the bucket in step with the stream: one entry for each app, written from
// the app's last event and from nothing else.
//
//	publisher ──► memory   Projector
//	         ┌──────│───────────────────────────────────────────┐
//	         │      ▼ bodies                                    │
//	stream ──┼─► delivery ──► tail ──► projection ──► writes ───┼──► bucket
//	headers  │      ▲          │            ▲                   │       │
//	         │      │          │            └──── restart ◄─────┼───────┘
//	leader ──┼──────┘          ▼                                │   entries that are damaged, missing
//	bodies   │        records, touched apps                     │   or foreign
//	         └─────────────────┼────────────────────────────────┘
//	                           ▼
//	                        session
//
// What comes in: a snapshot of the bucket to start from, the headers of the events behind it, the
// bodies of those that this session appended (NoteStored), and the acknowledgements of the bucket.
// What goes out: writes and purges of the bucket's keys; to the
// session, the records of the apps that exist (Take), how far stream and bucket are (Delivered,
// Position, WaitWritten), the apps that have had an event since (TakeTouched), and the state of
// single keys (KeyStates).
//
// A Projector follows the stream without a gap (tail.go) and writes an entry or a delete marker for
// each event (projection.go, records.go). It reads headers alone. The body of an event comes from
// memory if the stream acknowledged exactly this event to this session (cache.go). Every other body is
// fetched from the stream's leader, several at a time (delivery.go). Every write expects the
// bucket's sequence of the write before it, so that writes are pipelined and a refused one stops all
// later ones. The projector then reads the bucket again and goes on from there.
//
// It knows the key of each app that exists and which event it reflects (keys.go). An entry that it
// did not write, or that a caller distrusts, is compared with the app's last event and restored
// (doubtful.go). An entry that is too large is written with less (entry.go). Delete markers are
// removed at an age, if that is configured (markers.go).
//
// Events that were removed from the stream before they were projected end Run with ErrRemoved
// (tail.go), unless they were gone before the session started. A KeyCheck compares the number of
// the bucket's keys and its last sequence with what the projector did (keys.go).
//
// The package follows one stream and writes one bucket. It knows nothing of sessions, the queue or
// Kubernetes.
package projector
