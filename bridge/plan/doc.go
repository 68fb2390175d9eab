// Package plan answers one question about an app: given what the cluster, the stream and the bucket show
// of it, what is owed?
//
//	cluster ──► app.State ───┐
//	stream  ──► Event ───────┼──► Facts ──► Next:    what to publish, what the bucket should have
//	bucket  ──► Entry ───────┤        └───► Explain: the same comparison in words
//	queue   ──► Pending ─────┘
//
// It has no side effects, and is the only place where two of these are compared. A session asks Next what is
// owed when it starts; the publisher asks Follows before it makes an event; the projector asks Check about one
// entry; the audit and verify print Explain.
package plan
