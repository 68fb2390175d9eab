package store

import "sync"

// Checkpoint is what the leader writes into the Lease with each renewal: the highest sequences that
// JetStream has acknowledged. It is outside NATS, so it survives a NATS that comes back with less.
type Checkpoint struct {
	StreamID   string `json:"streamID"`
	ClusterUID string `json:"clusterUID"`
	StreamName string `json:"streamName"`
	BucketName string `json:"bucketName"`
	Stream     uint64 `json:"stream"` // of the event stream
	Bucket     uint64 `json:"bucket"` // of the bucket's stream
}

// SameHistory reports whether the sequences of two checkpoints can be compared.
func (c Checkpoint) SameHistory(other Checkpoint) bool {
	c.Stream, c.Bucket, other.Stream, other.Bucket = 0, 0, 0, 0
	return c == other
}

// Acknowledged holds the highest sequences that are known to have been acknowledged, by this bridge
// over all its sessions and by the checkpoint. They belong to one stream and bucket, of one
// identity. Its zero value knows nothing. Safe for concurrent use.
type Acknowledged struct {
	mu   sync.Mutex
	Now  Checkpoint
	sent uint64 // the highest sequence of the event stream that an append of ours may have got
	ours bool   // a session of this bridge goes by now: the Lease's checkpoint is not newer
}

// Adopt sets the history of the sequences, drops those of another, and returns what is known of it.
func (a *Acknowledged) Adopt(of Checkpoint) Checkpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.Now.SameHistory(of) {
		a.Now, a.sent = of, 0
	}
	a.ours = true
	return a.Now
}

// Release notes that this bridge does not lead any more: from now on the Lease's checkpoint counts.
func (a *Acknowledged) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ours = false
}

// NoteStream notes that the event stream acknowledged sequence.
func (a *Acknowledged) NoteStream(sequence uint64) { a.raise(&a.Now.Stream, sequence) }

// NoteBucket notes that the bucket's stream acknowledged sequence.
func (a *Acknowledged) NoteBucket(sequence uint64) { a.raise(&a.Now.Bucket, sequence) }

// NoteSent notes that an append was sent which gets sequence if the stream takes it.
func (a *Acknowledged) NoteSent(sequence uint64) { a.raise(&a.sent, sequence) }

func (a *Acknowledged) raise(highest *uint64, sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*highest = max(*highest, sequence)
}

// Reached is the highest sequence of the event stream that a consumer may have received.
func (a *Acknowledged) Reached() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.Now.Stream, a.sent)
}

// Merge adds a checkpoint of the same cluster, stream and bucket. One of another history replaces
// what is known, unless a session of this bridge uses that.
func (a *Acknowledged) Merge(w Checkpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case w.StreamID == "":
	case a.Now.SameHistory(w):
		a.Now.Stream, a.Now.Bucket = max(w.Stream, a.Now.Stream), max(w.Bucket, a.Now.Bucket)
	case !a.ours:
		a.Now, a.sent = w, 0
	}
}

// Checkpoint returns what is known.
func (a *Acknowledged) Checkpoint() Checkpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Now
}
