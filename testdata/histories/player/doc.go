// Package player plays histories: it writes a stream and a bucket to a JetStream server as bridges do,
// and as faults leave them.
//
//	seed ──► History ──► writer ──► stream, bucket ──► gate ──► readers
//	            │           │
//	            │           └─────► model
//	            └─────► Reader (killed, started again)
//
// The writer follows package subjects and nothing else. It shares no code with the bridge, so that a
// reader that needs more than the contract is found out; the bridge itself is judged by package
// chaos. One history has one server in this process, with its storage in files. It listens on no
// port: readers connect to a gate, which can break their connections.
package player
