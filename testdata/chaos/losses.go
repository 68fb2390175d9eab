package main

import (
	"fmt"
	"slices"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// copySlack is how many writes to the bucket may be in a copy beside those that
// were seen before it.
const copySlack = 32

// rollback is one rollback of what JetStream stores, and what was known of it.
type rollback struct {
	// Of the event stream: the epoch that begins, the last sequence that the copy
	// certainly has, the highest that anybody got, and the first. Epoch 0: it was
	// not rolled back.
	epoch              int
	floor, high, first uint64
	// Of the bucket's stream; bucketHigh 0: it was not rolled back.
	bucketFloor, bucketHigh uint64

	memory     bool       // the bridge that led lived through it, and knows what was acknowledged
	checkpoint checkpoint // of the Lease
	projected  uint64     // the highest event that a bucket which was not rolled back reflects
}

// checkpoint is what the Lease says was acknowledged.
type checkpoint struct {
	Stream uint64 `json:"stream"`
	Bucket uint64 `json:"bucket"`
}

// aftermath is what became of a rollback.
type aftermath struct {
	gone     []uint64 // messages of the event stream that are lost
	survived []uint64 // messages above the floor that are not
	reread   bool     // the stream was read again, so that both are exact
	named    namedLosses
	counted  namedCounts
}

// namedCounts are how far the metrics have risen.
type namedCounts struct{ stream, bucket, removed float64 }

// finding is what a rollback, or a removal, came to.
type finding struct {
	unnoticed []string     // losses that no bridge named although one could have
	unseen    []string     // losses that nothing which survived knew of
	losses    []audit.Loss // of the event stream that are Unseen
	wrong     []string
}

// known is the highest sequence of the event stream that somebody knew of who
// survived the rollback.
func (r rollback) known() uint64 {
	if r.memory {
		return r.high
	}
	return min(r.high, max(r.checkpoint.Stream, r.projected))
}

// judge says which losses were not named.
func (r rollback) judge(a aftermath) finding {
	var f finding
	if r.epoch > 0 {
		r.judgeStream(a, &f)
	}
	if r.bucketHigh > r.bucketFloor+copySlack {
		r.judgeBucket(a, &f)
	}
	return f
}

func (r rollback) judgeStream(a aftermath, f *finding) {
	for _, n := range a.named.stream {
		kept := slices.DeleteFunc(slices.Clone(a.survived), func(s uint64) bool { return !n.Contains(s) })
		if len(kept) > 0 {
			f.wrong = append(f.wrong, fmt.Sprintf("the lost range %s was named, but the stream has %s", n, span(kept)))
		}
	}
	at, found := slices.BinarySearch(a.gone, r.known())
	if found {
		at++
	}
	owed, beyond := a.gone[:at], notIn(a.gone[at:], a.named.stream)
	unnamed := notIn(owed, a.named.stream)
	if !a.reread && overlaps(a.named.stream, r.floor, r.high) {
		unnamed = nil // what is lost and what is not cannot be said
	}
	if len(unnamed) > 0 && a.counted.stream < float64(len(owed)) {
		f.unnoticed = append(f.unnoticed, "the event stream lost "+span(unnamed))
	}
	if len(beyond) > 0 {
		f.unseen = append(f.unseen, "the event stream lost "+span(beyond))
		f.losses = append(f.losses, audit.Loss{
			LostRange: subjects.LostRange{From: beyond[0], To: r.high}, Epoch: r.epoch - 1, First: r.first, Unseen: true,
		})
	}
}

// judgeBucket is less exact: of the bucket's stream only its ends are known.
func (r rollback) judgeBucket(a aftermath, f *finding) {
	if overlaps(a.named.bucket, r.bucketFloor, r.bucketHigh) || a.counted.bucket > 0 {
		return
	}
	what := fmt.Sprintf("the bucket's stream lost about %d-%d", r.bucketFloor+1, r.bucketHigh)
	if r.memory || r.checkpoint.Bucket > r.bucketFloor+copySlack {
		f.unnoticed = append(f.unnoticed, what)
	} else {
		f.unseen = append(f.unseen, what)
	}
}

// removal is a time in which events were removed from the stream.
type removal struct {
	above, upTo uint64 // the sequences that were watched, and are removed
}

// judge says which events were neither projected nor named.
func (r removal) judge(unprojected []uint64, a aftermath) finding {
	unnamed := notIn(unprojected, a.named.removed)
	if len(unnamed) == 0 || a.counted.removed >= float64(len(unprojected)) {
		return finding{}
	}
	return finding{unnoticed: []string{"removed before they were projected: " + span(unnamed)}}
}

// lostInput is what the audit has to know of all losses: each range that a
// bridge named belongs to one rollback.
func lostInput(rollbacks []rollback, unseen []audit.Loss, named namedLosses, notices []subjects.LostRange) (losses []audit.Loss, wrong []string) {
	losses = slices.Clone(unseen)
	for _, n := range named.stream {
		i := slices.IndexFunc(rollbacks, func(r rollback) bool { return r.epoch > 0 && n.From > r.floor && n.From <= r.high })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("a bridge named the lost range %s, and nothing was lost there", n))
			continue
		}
		losses = append(losses, audit.Loss{LostRange: n, Epoch: rollbacks[i].epoch - 1, First: rollbacks[i].first})
	}
	if logged, noticed := merged(named.stream), merged(notices); !slices.Equal(logged, noticed) {
		wrong = append(wrong, fmt.Sprintf("the logs name the lost ranges %v, notices in the stream %v", logged, noticed))
	}
	return losses, wrong
}

// found keeps what a rollback or a removal came to, and says so at once.
func (w *world) found(f finding) {
	for _, text := range f.wrong {
		w.fail("%s", text)
	}
	for _, text := range f.unnoticed {
		w.out.now("UNNOTICED: %s", text)
	}
	for _, text := range f.unseen {
		w.out.now("nothing that survived knew of it: %s", text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses.unnoticed = append(w.losses.unnoticed, f.unnoticed...)
	w.losses.unseen = append(w.losses.unseen, f.unseen...)
	w.losses.losses = append(w.losses.losses, f.losses...)
}

// namedCounts are the metrics of all bridges that count what was lost.
func (w *world) namedCounts() (n namedCounts) {
	for _, b := range w.bridges {
		n.stream += b.total(metricStreamLost)
		n.bucket += b.total(metricBucketLost)
		n.removed += b.total(metricRemoved)
	}
	return n
}

// auditLosses gives the audit what the bridges named, and reports what they
// named wrongly.
func (w *world) auditLosses(in *audit.Input) error {
	named, err := w.namedSince(nil)
	if err != nil {
		return err
	}
	notices, err := w.events.notices()
	if err != nil {
		return err
	}
	w.mu.Lock()
	rollbacks, unseen := slices.Clone(w.rollbacks), slices.Clone(w.losses.losses)
	w.mu.Unlock()
	var wrong []string
	in.Losses, wrong = lostInput(rollbacks, unseen, named, notices)
	in.Removed = named.removed
	w.mu.Lock()
	in.Removed = append(in.Removed, w.removed...)
	w.mu.Unlock()
	for _, text := range wrong {
		w.fail("%s", text)
	}
	return nil
}
