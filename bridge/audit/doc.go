// Package audit compares the cluster, the stream and the bucket, and repairs differences: once for
// `appbridge verify` ([bridge.Verify]), and again and again in a running bridge.
//
// A running bridge is audited in rounds:
//
//	          ┌─────────── a round, every interval ───────────┐
//	screen ───► suspects ──► look ──► look again ──► finding ──► repair ──► look ──► repaired
//	(cheap,                  (in full, from the leaders,        (by the part)
//	 everything)              at least Between apart)
//
// A screen reads everything and costs little. It may suspect too much, but it misses no difference
// that persists. A look reads the suspects in full. A change in progress is no difference: a look
// does not judge a subject whose belief changed meanwhile. Two looks that agree make a finding.
//
// A look says what differs as [plan.Explain] does. Type [Auditor] has the schedule and the findings. Type [Screen] compares the headers of a stream
// and its bucket with each other and with what the bridge believes. It keeps a few bytes for each
// app, also for apps that were deleted long ago.
package audit
