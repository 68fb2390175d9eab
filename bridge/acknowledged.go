package bridge

import "sync"

// witness is what the leader writes into the Lease with each renewal: the highest sequences that
// JetStream has acknowledged. It is outside NATS, so it survives a NATS that comes back with less.
type witness struct {
	StreamID   string `json:"streamID"`
	ClusterUID string `json:"clusterUID"`
	StreamName string `json:"streamName"`
	BucketName string `json:"bucketName"`
	Stream     uint64 `json:"stream"` // of the event stream
	Bucket     uint64 `json:"bucket"` // of the bucket's stream
}

// sameHistory reports whether the sequences of two witnesses can be compared.
func (w witness) sameHistory(other witness) bool {
	w.Stream, w.Bucket, other.Stream, other.Bucket = 0, 0, 0, 0
	return w == other
}

// acknowledged holds the highest sequences that are known to have been acknowledged, by this
// bridge over all its sessions and by the witness. They belong to one stream and bucket, of one
// identity. Its zero value knows nothing. Safe for concurrent use.
type acknowledged struct {
	mu   sync.Mutex
	now  witness
	sent uint64 // the highest sequence of the event stream that an append of ours may have got
	ours bool   // a session of this bridge goes by now: the Lease's witness is not newer
}

// adopt makes of the history that the sequences belong to; those of another one are forgotten. It
// returns what is known of it.
func (a *acknowledged) adopt(of witness) witness {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.now.sameHistory(of) {
		a.now, a.sent = of, 0
	}
	a.ours = true
	return a.now
}

// release notes that this bridge does not lead any more: from now on the Lease's witness counts.
func (a *acknowledged) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ours = false
}

// noteStream notes that the event stream acknowledged sequence.
func (a *acknowledged) noteStream(sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now.Stream = max(a.now.Stream, sequence)
}

// noteSent notes that an append was sent which gets sequence if the stream takes it.
func (a *acknowledged) noteSent(sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = max(a.sent, sequence)
}

// reached is the highest sequence of the event stream that anybody may have seen.
func (a *acknowledged) reached() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.now.Stream, a.sent)
}

// noteBucket notes that the bucket's stream acknowledged sequence.
func (a *acknowledged) noteBucket(sequence uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now.Bucket = max(a.now.Bucket, sequence)
}

// merge adds a witness of the same cluster, stream and bucket. One of another history replaces what is
// known, unless a session of this bridge uses that.
func (a *acknowledged) merge(w witness) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case w.StreamID == "":
	case a.now.sameHistory(w):
		a.now.Stream, a.now.Bucket = max(w.Stream, a.now.Stream), max(w.Bucket, a.now.Bucket)
	case !a.ours:
		a.now, a.sent = w, 0
	}
}

func (a *acknowledged) get() witness {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}
