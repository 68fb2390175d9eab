// Package bridge publishes every change of a Flyte app to a JetStream stream
// and keeps a key-value bucket as the current state of all apps. Package
// subjects says what others see of it; this page says how it works.
//
//	informers ──► source ──► queue ──► encoder ──► publisher ──► stream
//	                                                               │
//	                                             bucket ◄── projector
//
// The source turns what the informers show into states of apps, and each
// change of state into a change in the queue. It runs all the time, also while
// nothing is published. Its handlers update maps and never wait.
//
// The queue holds what the stream does not have yet, per app and in order. An
// app has one change under way; apps do not wait for each other. When it grows
// too long, updates merge.
//
// The encoder makes the message for a change, from the change and the app's
// record alone. The record is what was published of the app last. The publisher appends
// the message, expecting the sequence of that record, and finds out what a
// refusal means.
//
// The projector follows the stream and writes the bucket, each write expecting
// the one before. Nothing else writes the bucket. Both are read as far as the
// leaders of their streams have them: a consumer may be on a replica that is
// behind. A message that was removed before it was projected ends the session.
//
// # Sessions
//
// Publishing happens in sessions. A session reads the bucket, follows the
// stream from there to its end, takes the records that this gives, lists the
// cluster consistently, waits until the source has seen as much, publishes the
// difference, and from then on everything that happens. Whatever goes wrong in
// a way that leaves doubt about what is published (the stream is gone, another writer
// appended, too much waits) ends the session, and the next one compares anew.
// So there is one way to be right, and it is taken at every start. The queue
// outlives its session: the next one goes on with the changes that still
// follow what the stream has by then, and only where none do publishes a
// difference. So trouble with NATS costs no state that was seen.
//
// While a session is live, a guard looks at the stream and the bucket every few
// seconds (gone, changed, keys missing, written by somebody else), and at the
// cluster's version, which must not step back.
//
// # What can be read
//
// App operations read the states that the source holds (Bridge.App, Bridge.Apps),
// whether this bridge leads or not, and how far the informers have come
// (Bridge.Newest), which package appsvc holds against the stream. The pods of apps
// have informers of their own, since no event depends on them.
//
// # What keeps the order
//
// Not that one bridge runs, nor that a queue has no bug: the stream refuses an
// append whose expected sequence is not the app's last, and the bucket refuses
// a write that does not follow the last one. Leader election saves work.
//
// Locks are taken in this order: source, then queue. Neither is held while
// anything is read or written over a network.
package bridge
