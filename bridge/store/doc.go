// Package store is the JetStream side of the bridge: it creates, checks, marks and reads the stream
// of events and the KV bucket with the current state of each app.
//
//	JetStream                                             the bridge
//
//	configuration, metadata ──► Storage ────────────────► identity, *app.ConfigError
//	last sequences ───────────► Acknowledged, LossOf ───► what was lost ──► HealStream, HealBucket
//	bucket ───────────────────► Bucket.Load ────────────► Snapshot: the record of each app
//	one subject ──────────────► Reader, LastMessage ────► an app's last event, from the leader
//	all messages ─────────────► Follow, FollowLast ─────► messages in order, without gaps
//
// Single messages, and the ends of a stream, are read from its leader ([LookUp]). A consumer may be placed on a replica that
// is behind, so what it delivers counts once it has reached the leader's last sequence.
//
// A [Checkpoint] has the highest sequences that were acknowledged. The leader of the bridge keeps
// it in the Lease, outside NATS. A stream that ends before its checkpoint has lost messages: the
// lost sequences are filled, so that none is assigned twice, and a notice names them. The stream is the
// only record of its losses: its notices, and the newest filler until there is a notice.
//
// Who writes what: [Storage] writes metadata, fillers and notices. Events are appended by the
// publisher, entries by the projector and by verify's repair.
package store
