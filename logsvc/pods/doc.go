// Package pods reads the logs of apps from Kubernetes: it is a [logsvc.LogStreamer].
//
//	logsvc.Query ──► Source.Open ──► Knative Service ──► pods ──► containers ──► slots
//	                                                                               │
//	                 Sink ◄── Lines, Notes ◄── tailer, one for each container ◄── Run
//	                 Sink ◄── Replicas     ◄── manage: informer, resync
//
// A tailer reads one log through restarts, rotations and lost connections. It resumes by content: it
// keeps the last lines that were delivered (trail) and searches for them (search) in the log of the
// same instance. What exists is read at the pace of the reader, then a follow opens behind it, which
// is never held back. In a stream that follows, manage starts tailers for new replicas.
//
// The logs of all streams have one read rate, and projects share the slots and take turns.
package pods
