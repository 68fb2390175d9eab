// Package app has the states of apps, the changes between them, and the messages that carry a
// change. It has no I/O: no connection, no client, no clock but for the time of an observation.
//
//	Knative Service ──► Keeper ──► CachedService: its App, encoded
//
//	watch:  State ──► Change ──────┐
//	                               ├──► Encoder ──► Event: message, next Record
//	store:  message ──► Record ────┘
//
//	store:  Event ──► Entries ──► message for the bucket
//
// A [Keeper] is the transform of the informers. It converts and encodes each version of a Knative
// Service once; the informers' store keeps the result, a [CachedService], in place of the object.
// States and records have their App [Encoded]: an event is spliced from the bytes of the new and
// the old App, an entry of the bucket is the bytes of the new one. Equal bytes are equal Apps; all
// others are decoded to compare.
//
// A [State] is one version of a Knative Service and the Revision that gives its replica count. A
// [Change] is a new State, or the removal of an app. A [Record] is what was published of an app:
// its last event, read from the stream ([ReadEvent]) or from its entry in the bucket ([ReadEntry]).
// The same change after the same record is encoded to the same bytes, so a repeated append is a
// duplicate, not a second event.
//
// [CheckHistory] rejects a cluster whose history is older than what was published. What is owed, package plan
// says.
package app
