// Package bridge publishes every change of a Flyte app to a JetStream stream
// and keeps a key-value bucket as the current state of all apps. Package
// subjects specifies the messages; this page is how it works.
//
//	Kubernetes API                                          NATS JetStream
//
//	                       watch          publisher
//	Knative Services ─┐   ┌────────┐   ┌────────────────────┐
//	Revisions, pods ──┼──►│ source ├──►│ queue ─► publisher ├──► stream ─┬─► projector ──► bucket
//	                  │   └───┬────┘   └────────────────────┘            │                   │
//	                  │       ▼                                          ▼                   │
//	                  │   plan.Next (at each start)             store.Acknowledged           │
//	Lease ◄───────────┼──────────────────────────────────────────────────┘                   │
//	                  └─────────────────────── audit ◄───────────────────────────────────────┘
//
// # The parts
//
// This package is the story: Bridge, session, election, readiness, the guard and the
// configuration. The parts do not use it; the ones above use those below:
//
//	audit                  compares and repairs, as verify and while serving
//	publisher, projector   the one sender of events; the one writer of the bucket
//	store, watch           the side of JetStream; the side of Kubernetes
//	plan                   what is owed for an app: the one comparison; no I/O
//	app                    states, changes, records, encoding: no I/O
//	kube, kservice         clients and errors of Kubernetes; Knative Service <-> App
//
// The source (watch) turns what the informers show into states of apps, and each change of state
// into a change in the queue. It runs all the time, also while nothing is published. Its handlers
// update maps and never wait. App operations read the states that it holds (Bridge.App,
// Bridge.Services), whether this bridge leads or not. The pods of apps have informers of their own.
// Events depend on them only with --pod-conditions; without it they may fail and the bridge is ready.
//
// The queue (publisher) holds what the stream does not have yet, per app and in order. The
// publisher makes the event of each change from the change and the record of the app's last event.
// The projector follows the stream's headers, and is handed the events that the stream
// acknowledged.
//
// # Sessions
//
// Publishing happens in sessions. A session reads the bucket, follows the stream from there to its
// end, takes the records that this gives, lists the cluster consistently, waits until the source
// has seen as much, confirms the records of what differs (plan.Next) by the stream's leader (reconcile.go),
// publishes the difference, and from then on everything that happens. Any doubt about what is
// published ends the session (the stream is gone or ends too early, another writer appended, events
// are missing, too much waits), and the next one resyncs. Every start runs the same
// reconciliation. The queue outlives its session: the next one goes on with the changes that still
// follow what the stream has by then, and only where none do publishes a difference. So trouble
// with NATS costs no state that was seen, within the limits of the queue.
//
// While a session is live, a guard (guard.go) looks at stream, bucket and the cluster's version
// every few seconds: gone, changed, ended too early, keys missing, written by another client. The
// audit compares the informers with the cluster, and stream and bucket with what the live session
// believes. The informer, the projector, or the next session repairs what differs.
//
// # Losses and holes
//
// What stream and bucket's stream have acknowledged is remembered over the sessions (acknowledged),
// and with leader election in the Lease, the checkpoint outside NATS. Sequences count for one
// identity of the stream, which is in its metadata.
//
// A stream that ends before what was acknowledged has lost its tail. The next session names the
// range, gives its sequences to fillers, appends a notice, carries the bucket's stream on, and
// treats entries of the range as damaged. Its comparison then finds what is owed.
//
// Events that were removed before they were projected are a hole. It ends the session unless they
// were gone before that read the stream.
//
// # What keeps the order
//
// Not that one bridge runs, nor that a queue has no bug: the stream refuses an append that does not
// follow its last message and the app's last event, and the bucket refuses a write that does not
// follow the last one. Leader election saves work.
//
// Locks are taken in this order: source, then queue. Neither is held while anything is read or
// written over a network.
package bridge
