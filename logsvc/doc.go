// Package logsvc streams the logs of apps over NATS, to people with nothing but
// the stock nats client and to programs.
//
// A [Service] is a NATS micro service with the endpoints get, tail and open; the
// contract is in package subjects, docs/logs.md describes the requests. All
// replicas of appbridge share the requests as one queue group, whether they lead
// or not. A [LogStreamer] finds the logs: package pods reads those of pods.
//
//	request ──► Service ──► slot ──► LogStreamer.Open ──► first message: the replicas
//	                                        │
//	replica ──► Sink.Lines ──► outbox ──► send ──► reply subject
//	            (one goroutine  (bounded)  (paced, or a window     ▲
//	             per replica)               of messages)           │ reader.watch: is anybody there?
//
// # What bounds a stream
//
// What exists already is read no faster than it is sent: Sink.Lines blocks while
// 256 KiB wait in the outbox. Lines that are being written must not wait, since
// the kubelet of a reader that is slow would rotate them away without a word: they
// go through a ring of 2 MiB, and what falls out of it is counted, with a note
// where it is missing. A line is held to 128 KiB. All streams together hold 64 MiB and a
// small floor each; what is counted is the memory that is taken, not the text alone.
//
// Expressions are weighed before they are compiled, and tried in turns on half of the
// processors. Requests and the logs of pods are limited, and projects share the limits.
//
// # How a stream ends
//
// Every message but the last has a reply subject. When nobody listens to a
// stream the server says so there, to this connection, and so it does for probes that
// it traces and does not deliver, which are sent when there is nothing else to send. Five
// seconds of that end the stream. A reader with a window acknowledges; what it has
// not acknowledged is sent again, since either connection may lose it.
//
// A slow or frozen reader can stall its own stream and nothing else, except that a
// NATS server slows down a connection that writes faster than one of its readers
// reads. Hence streams have a connection of their own, requests arrive on another, and the
// server should have no_fast_producer_stall set, as deploy/nats.conf and the embedded server do.
// The bytes of all logs have one rate, so that a hundred readers leave processor time to others.
package logsvc
