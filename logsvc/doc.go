// Package logsvc streams the logs of apps over NATS, to people with the stock nats client and to
// programs.
//
// A [Service] is a NATS micro service with the endpoints get, tail and open. The contract is in
// package subjects, docs/logs.md describes the requests. All replicas of appbridge share the
// requests as one queue group, the leader and the others. A [LogStreamer] reads the logs: package
// pods those of Kubernetes. Another backend is a folder beside pods that implements it;
// runLogService in cmd/appbridge starts it.
//
//	request ──► Service ──► slot ──► LogStreamer.Open ──► first message: the replicas
//	                                        │
//	replica ──► Sink.Lines ──► outbox ──► send ──► reply subject
//	            (one goroutine  (bounded)  (paced, or a window     ▲
//	             per replica)               of messages)           │ monitor: acknowledgements, probes
//
// Existing lines are read no faster than they are sent: Sink.Lines blocks while the outbox is full.
// Live lines must not wait, as the kubelet would rotate the log before a slow reader has it: they go
// through a ring, and lines that it drops are counted, with a note in their place.
//
// Every message but the last has a reply subject. When a stream has no subscriber, the server
// replies there with 503. It also replies to probes, which it traces and does not deliver; they are
// sent while the stream is idle. A reader with a window acknowledges messages; unacknowledged ones
// are sent again.
package logsvc
