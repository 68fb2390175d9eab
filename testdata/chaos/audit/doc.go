// Package audit holds what a bridge published against what its cluster went
// through: every state once and in order in the stream, the bucket at the last
// one. It does no I/O and knows nothing of the bridge but its wire contract and
// the conversion, so that it can be trusted beside it.
package audit
