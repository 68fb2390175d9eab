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
	// Notice is the newest notice of loss that the stream had when it acknowledged Stream, noNotice
	// if it had none; 0: not known. A later notice is of a loss that Stream may be a part of.
	Notice uint64 `json:"notice,omitempty"`
}

// noNotice is the sequence of no notice, since a notice is behind the range that it names.
const noNotice = 1

// SameHistory reports whether the sequences of two checkpoints can be compared.
func (c Checkpoint) SameHistory(other Checkpoint) bool {
	return c.history() == other.history()
}

// history is the checkpoint without its sequences.
func (c Checkpoint) history() Checkpoint {
	c.Stream, c.Bucket, c.Notice = 0, 0, 0
	return c
}

// with is the checkpoint with the higher sequences of both, which are of the same history.
func (c Checkpoint) with(other Checkpoint) Checkpoint {
	if other.Stream > c.Stream {
		c.Stream, c.Notice = other.Stream, other.Notice
	}
	c.Bucket = max(c.Bucket, other.Bucket)
	return c
}

// Acknowledged holds the highest sequences that are known to have been acknowledged: by this bridge
// over all its sessions, and by the Lease's checkpoint. They belong to one stream and bucket, of one
// identity. Its zero value knows nothing. Safe for concurrent use.
type Acknowledged struct {
	mu   sync.Mutex
	Now  Checkpoint // of this bridge
	sent uint64     // the highest sequence of the event stream that an append of ours may have got
	// lease is the Lease's checkpoint as last read. It counts until a session of this bridge has
	// compared it with the stream and the bucket. From then on the Lease has nothing newer.
	lease LeaseCheckpoint
	ours  bool
}

// LeaseCheckpoint is the checkpoint that the Lease has. Anyone who may update the Lease can write it.
type LeaseCheckpoint struct {
	Checkpoint
	Source string // the name of the annotation and of the Lease
	Value  string // the annotation
	Err    error  // why the annotation cannot be parsed
}

// ReadLease notes the Lease's checkpoint, in place of the one that was read before. It returns false
// if the checkpoint does not count, since a session of this bridge has compared a newer one.
func (a *Acknowledged) ReadLease(c LeaseCheckpoint) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ours {
		a.lease = c
	}
	return !a.ours
}

// Known returns what is known of a history: by this bridge, and by the Lease if its checkpoint counts.
// The latter is zero without one. It returns also the highest sequence of the stream that a consumer
// may have received.
func (a *Acknowledged) Known(of Checkpoint) (own Checkpoint, lease LeaseCheckpoint, reached uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Now.SameHistory(of) {
		own, reached = a.Now, max(a.Now.Stream, a.sent)
	}
	if a.lease.Err != nil || a.lease.SameHistory(of) {
		lease = a.lease
	}
	return own, lease, reached
}

// Adopt notes that stream and bucket have, or had, everything up to now, and that no loss is left to
// heal. What was known of another history is dropped. From now on the Lease's checkpoint is written,
// and not read.
func (a *Acknowledged) Adopt(now Checkpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Now.SameHistory(now) {
		now.Stream, now.Bucket = max(now.Stream, a.Now.Stream), max(now.Bucket, a.Now.Bucket)
	} else {
		a.sent = 0
	}
	a.Now, a.lease, a.ours = now, LeaseCheckpoint{}, true
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

// NoteNotice notes that another bridge appended a notice of loss at sequence. It counts only if it is
// behind everything that was acknowledged: else what was acknowledged may be a part of the loss.
func (a *Acknowledged) NoteNotice(sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Now.Stream < sequence {
		a.Now.Stream, a.Now.Notice = sequence, sequence
	}
}

// Checkpoint returns what is known. Of the Lease and this bridge the Lease's history counts until a
// session of this bridge has begun.
func (a *Acknowledged) Checkpoint() Checkpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch lease := a.lease.Checkpoint; {
	case a.ours, a.lease.Err != nil, lease.StreamID == "":
		return a.Now
	case a.Now.SameHistory(lease):
		return a.Now.with(lease)
	default:
		return lease
	}
}

// ToLease returns the checkpoint to write into the Lease; false: leave what the Lease has, since a
// session has still to compare it.
func (a *Acknowledged) ToLease() (Checkpoint, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lower := a.lease.Err == nil && a.lease.StreamID != "" && a.lease.SameHistory(a.Now) &&
		a.lease.Stream <= a.Now.Stream && a.lease.Bucket <= a.Now.Bucket
	return a.Now, a.ours || lower
}
