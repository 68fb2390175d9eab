// Package logsvc streams the logs of apps over NATS, to people with the stock nats client and to
// programs.
//
// A [Service] is a NATS micro service with the endpoints get, tail and open. The contract is in
// package subjects, docs/logs.md describes the requests. All replicas of appbridge share the
// requests as one queue group, the leader and the others. A [LogStreamer] reads the logs: package
// pods those of Kubernetes.
//
//	request ──► Service ──► slot ──► LogStreamer.Open ──► first message: the replicas
//	                                        │
//	replica ──► Sink.Lines ──► outbox ──► send ──► reply subject
//	            (one goroutine  (bounded)  (paced, or a window     ▲
//	             per replica)               of messages)           │ monitor: acknowledgements, probes
//
// # What bounds a stream
//
// Existing lines are read no faster than they are sent: Sink.Lines blocks while the outbox holds
// 256 KiB. Live lines must not wait, since the kubelet would rotate the log before a slow reader
// has it: they go through a ring of 2 MiB. Lines that it drops are counted, with a note in their
// place. A line is cut at 128 KiB. All streams together hold 64 MiB and a small floor each; the
// memory counts, not the text alone.
//
// The cost of an expression is limited before it is compiled. Expressions are matched in turns on
// half of the processors. Requests and logs are limited, and projects share the limits.
//
// # How a stream ends
//
// Every message but the last has a reply subject. When a stream has no subscriber, the server
// replies there with 503. It also replies to probes, which it traces and does not deliver; they are
// sent while the stream is idle. The stream ends when it has no subscriber for five seconds. A
// reader with a window acknowledges messages. Unacknowledged ones are sent again, since either
// connection may lose them.
//
// A slow or frozen reader can stall its own stream and nothing else, except that a NATS server
// slows down a connection that writes faster than one of its readers reads. Hence streams and
// requests have separate connections, and the server should have no_fast_producer_stall set, as
// deploy/nats.conf and the embedded server do.
package logsvc
