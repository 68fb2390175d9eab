// Package appwatch reads what appbridge publishes: the exact snapshot of the apps, then every event,
// in order, once. It needs a NATS connection, and nothing of Kubernetes.
//
//	bucket ──► State, State, … Mark ┐
//	            (position S)        ├──► for item, err := range appwatch.Watch(ctx, js, opts)
//	stream ──► Event, Event, …      ┘
//	            (from S+1 on)
//
// [Watch] hides what happens to connections, servers, leaders, streams and buckets. What it cannot
// hide it yields:
//
//	Loss      events are gone: the stream lost them (a notice), or they were removed unread
//	Restart   the snapshot is read again: States with the differences marked, then a Mark
//
// # Resumption
//
// A program that stores [Item.Position] with what it did goes on there with [Options.From]: no
// event is missing, and none comes twice. The position of a reader of a mirror, or of a stream with
// sources, is that of the origin, so it fits any copy. It has a hash of the id of the event that it
// is behind, so that a stream which was put back to an earlier state and filled again is found. A
// reader of a stream with sources does not compare it.
//
// Where retention took messages behind the position, or the stream is another one, a Restart comes
// first, also for a reader of some apps whose events were not among them: the delete marker of an app
// may have been removed since. With [Options.NoSnapshot] a [Loss] names what is missing, and the
// events that are left follow. A program that has NoSnapshot and From, or NoSnapshot and Since, reads
// events alone, and needs no bucket.
//
// # Copies
//
// Options.Stream is the event stream, a mirror of it or of its mirror, or a stream that has it as a
// source. A stream with sources may have those of several clusters, each under a prefix of its own. If
// two have the same prefix, the watch ends with [ErrOptions] where it would skip an event. A mirror of
// a stream with sources, or a source that has sources itself, cannot be read: its messages do not have
// the sequences of the origin.
//
// The bucket may reflect events that a copy has not got yet, or never gets. A Restart with such a State
// waits until the copy has caught up with its origin. Its Mark is then behind those events.
//
// # Losses
//
// After a notice of loss (see package subjects) events go on at once. The Restart that follows waits
// until no entry of the bucket is in the lost range, and is yielded between the events that it lies
// between: it skips none. It waits as long as the bucket lacks an event that was yielded and that the
// stream still has. Until then Item.Position is [Position.Owed], so that a program that ends in
// between gets the Restart when it resumes.
//
// A Restart skips events only where the position cannot be resumed: those up to the Mark's position
// are in the States.
//
// A notice may be wrong: if the stream has the events of the range that the bucket reflects, the Restart
// does not wait for others.
//
// A position behind the end of the stream, or of a copy of the whole stream that has caught up, is not
// resumed if that is so for 15 s. The reason is ErrRolledBack.
//
// A stream that comes back with less than was read of it, and without a notice, gives sequences to
// other events. The reason of the Restart is then [ErrRolledBack]. With NoSnapshot it is that of a
// Loss, and the same sequences follow again from Lost.From on: what a program recorded of them in
// this stream is no longer part of the history. Events that are still part of it can be among them,
// and have the same [Item.MessageID].
//
// A live reader of some apps, or of a stream with sources, sees no gap between sequences. It compares
// with the bucket when it begins with From or Since, and where the beginning of the stream has moved,
// and yields a Restart only if there is a difference. With NoSnapshot it cannot compare. Then a reader
// of some apps yields a Loss with a range that may have had events of its apps, and a reader of a
// stream with sources yields one only when the next event of the app names the one that is missing.
// An app whose delete marker was removed for its age is missing in a snapshot of that app alone that
// was read between the last event of the app before its delete and the delete; its events follow.
//
// A key of the bucket that somebody else has written or deleted hides its app until a bridge restores it.
// The Mark of a snapshot that lacks an app of the stream for that reason is Owed, and a Restart follows. A
// key that was removed altogether does not show in a first snapshot. A Restart waits up to half a minute
// for those of apps that were yielded.
//
// A stream may be put back, before a reader with From or Since has got there, to less than it held at
// the start. If it stays so for 15 s, the Mark is at its new end.
//
// A copy of the bucket that is behind its origin can lack an app whose entry was written again. Watch
// waits up to 2 s for such a copy. Then it yields what is there, the Mark's position is Owed, and a
// Restart follows if something was missing.
//
// # State
//
// Each method of [Item] reads the message when it is called: a program that calls only those that need
// headers decodes no bodies. With [Options.HeadersOnly] none are sent. A message may lack fields that did
// not fit ([Item.Lacks]). They are not replaced by older ones, which might be wrong by now.
//
// # Speed and memory
//
// The server sends at most 1,024 messages ahead, fewer where they are large (about 8 MiB, by the size
// of those before) or where its jetstream.limits.max_request_batch is less. Slow loops hold back nothing but
// themselves, and lose nothing that retention leaves. A snapshot is in memory until it is yielded. A
// reader remembers the last sequence of each app, and of up to 65,536 that are gone. With
// [Options.Latest] what waits is at most one event of each app, and one state.
//
// A reader goes on within a second after a server is back if the connection does: nats.go waits 2 s
// between its tries unless it has nats.ReconnectWait, and ends after 60 unless it has
// nats.MaxReconnects(-1).
//
// # Rights
//
// Watch needs these subjects of the JetStream API, of the stream and of the bucket's stream, and its
// inbox. The users of mirrors in deploy/nats have them:
//
//	publish     $JS.API.STREAM.INFO.<stream>
//	            $JS.API.STREAM.MSG.GET.<stream>
//	            $JS.API.CONSUMER.CREATE.<stream>.>
//	            $JS.API.CONSUMER.MSG.NEXT.<stream>.*
//	            $JS.API.CONSUMER.DELETE.<stream>.*
//	subscribe   _INBOX.>
package appwatch
