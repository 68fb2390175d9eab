// Package audit compares what a running bridge works with, again and again, and has repaired what
// differs. It knows nothing of Kubernetes or JetStream: package bridge gives it the parts to audit.
//
//	          ┌─────────── a round, every interval ───────────┐
//	screen ───► suspects ──► look ──► look again ──► finding ──► repair ──► look ──► repaired
//	(cheap,                  (in full, from the leaders,        (by the part)
//	 everything)              at least Between apart)
//
// A screen goes over everything and costs little. It may suspect too much, never too little of what
// stands still. A look reads the suspects in full. What the bridge has under way is no difference:
// a look does not judge a subject of which the bridge's own belief changed meanwhile. Two looks
// that agree make a finding.
//
// Type [Auditor] has the schedule and the findings. Type [Screen] is the header-only comparison of a
// stream, its bucket and what the bridge believes of both; its memory is a few bytes for each app,
// also for apps that were deleted long ago.
package audit
