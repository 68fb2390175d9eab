package player

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// bucket is what the writer wrote to the bucket.
type bucket struct {
	last      uint64 // the sequence of its stream's last message
	projected uint64 // the sequence of the stream up to which the bucket reflects it
	exactAt   uint64 // 0: it is exact; else it is once projected is here
	entries   map[subjects.AppID]entry
}

// entry is what the bucket has of an app: a value, or the marker of a delete.
type entry struct {
	event *model.Message
	at    uint64 // the sequence in the bucket's stream
}

func (e entry) marker() bool { return e.event.Event.Kind == subjects.Deleted }

func (b bucket) clone() bucket {
	b.entries = maps.Clone(b.entries)
	return b
}

var bucketStream = subjects.BucketStream(subjects.DefaultBucket)

func (w *writer) createBucket(ctx context.Context) error {
	if _, err := w.box.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: subjects.DefaultBucket, History: 1, Storage: jetstream.FileStorage,
	}); err != nil {
		return err
	}
	handle, err := w.box.js.Stream(ctx, bucketStream)
	if err != nil {
		return err
	}
	cfg := handle.CachedInfo().Config
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	cfg.Metadata[subjects.MetadataStream], cfg.Metadata[subjects.MetadataStreamID] = stream, w.streamID
	if _, err = w.box.js.UpdateStream(ctx, cfg); err != nil {
		return err
	}
	if w.bucket.last > 0 {
		return handle.Purge(ctx, jetstream.WithPurgeSequence(w.bucket.last+1))
	}
	return nil
}

// write writes the entry or marker of an event.
func (w *writer) write(ctx context.Context, m *model.Message) error {
	e := m.Event
	key, err := e.ID.Key()
	if err != nil {
		return err
	}
	h := header{}
	for name, values := range w.headers[m.Sequence] {
		if strings.HasPrefix(name, "Flyte-") || strings.HasPrefix(name, "ce-") {
			h[name] = values
		}
	}
	h.number(subjects.HeaderEventSequence, m.Sequence)
	h.set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(w.bucket.last, 10))
	msg := &nats.Msg{Subject: subjects.BucketSubject(subjects.DefaultBucket, key), Header: nats.Header(h)}
	if e.Kind == subjects.Deleted {
		h.set(subjects.HeaderKVOperation, subjects.KVDelete)
	} else {
		form := ""
		if msg.Data, form, err = appv1.Encode(model.Without(e.App, m.Entry), w.form); err != nil {
			return err
		}
		h.set(subjects.CEDataContentType, form)
		h.set(subjects.HeaderTruncated, strings.Join(m.Shown(), ","))
	}
	ack, err := w.box.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return fmt.Errorf("write the entry of %s after %d: %w", e.ID, w.bucket.last, err)
	}
	w.bucket.last = ack.Sequence
	w.bucket.entries[e.ID] = entry{event: m, at: ack.Sequence}
	return nil
}

// project has the bucket follow the stream by at most n messages.
func (w *writer) project(ctx context.Context, n int) error {
	w.model.Lock()
	defer w.model.Unlock()
	for _, m := range w.model.Between(w.bucket.projected, w.last+1) {
		if n == 0 {
			return nil
		}
		n--
		if m.LostAt != 0 {
			continue
		}
		if m.Event != nil && m.RemovedAt != 0 {
			m.Skipped = true
		} else if m.Event != nil {
			if w.cluster.rand.IntN(20) == 0 && m.Event.Kind != subjects.Deleted && len(m.Event.Truncated) == 0 && m.Entry == nil {
				m.Entry = []string{subjects.TruncatedSpec}
			}
			if err := w.write(ctx, m); err != nil {
				return err
			}
		}
		w.bucket.projected = m.Sequence
	}
	w.bucket.projected = w.last
	if at := w.bucket.exactAt; at > 0 && w.bucket.projected >= at {
		w.bucket.exactAt = 0
		w.model.Exact()
	}
	return nil
}

// inexact notes that the bucket is not what the stream says, until it has been projected up to where
// settle is called.
func (w *writer) inexact() {
	w.model.Lock()
	defer w.model.Unlock()
	w.model.Inexact()
	w.bucket.exactAt = ^uint64(0)
}

// settle notes that the bucket is exact once everything is projected that the stream has now.
func (w *writer) settle() { w.bucket.exactAt = max(w.last, 1) }

// rebuild writes a bucket that reflects nothing from the last message of each subject.
func (w *writer) rebuild(ctx context.Context) error {
	w.model.Lock()
	type subject struct {
		id   subjects.AppID
		kind subjects.EventKind
	}
	last := map[subject]*model.Message{}
	for _, m := range w.model.All() {
		if m.Event != nil && m.Present() {
			last[subject{m.Event.ID, m.Event.Kind}] = m
		}
	}
	w.model.Unlock()
	w.bucket.entries, w.bucket.projected = map[subjects.AppID]entry{}, w.last
	for _, m := range slices.SortedFunc(maps.Values(last), bySequence) {
		if err := w.write(ctx, m); err != nil {
			return err
		}
	}
	for _, id := range w.cluster.ids {
		// What the bucket shows now is what was published.
		record := w.published[id]
		if e, has := w.bucket.entries[id]; has {
			sequence := max(record.sequence, e.event.Sequence)
			w.forget(id, e.event.Sequence)
			record = w.records[e.event.Sequence]
			record.sequence = sequence
		} else {
			w.forget(id, 0)
			record.exists = false
		}
		w.published[id] = record
		if err := w.owed(ctx, id); err != nil {
			return err
		}
	}
	w.settle()
	return nil
}

// forget notes that nothing shows an app's removed events behind a sequence any more.
func (w *writer) forget(id subjects.AppID, after uint64) {
	w.model.Lock()
	defer w.model.Unlock()
	for _, m := range w.model.Between(after, w.last+1) {
		if m.Event != nil && m.Event.ID == id && m.RemovedAt != 0 {
			m.Skipped = true
		}
	}
}

func bySequence(a, b *model.Message) int { return cmp.Compare(a.Sequence, b.Sequence) }

// expire removes delete markers, but not the newest message and not the one of the highest sequence.
func (w *writer) expire(ctx context.Context) error {
	handle, err := w.box.js.Stream(ctx, bucketStream)
	if err != nil {
		return err
	}
	highest := uint64(0)
	for _, e := range w.bucket.entries {
		highest = max(highest, e.event.Sequence)
	}
	for id, e := range w.bucket.entries {
		if !e.marker() || e.at == w.bucket.last || e.event.Sequence == highest {
			continue
		}
		w.model.Lock()
		e.event.Expired = true
		w.model.Unlock()
		if err := w.removeKey(ctx, handle, id); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) removeKey(ctx context.Context, handle jetstream.Stream, id subjects.AppID) error {
	key, err := id.Key()
	if err != nil {
		return err
	}
	delete(w.bucket.entries, id)
	return handle.Purge(ctx, jetstream.WithPurgeSubject(subjects.BucketSubject(subjects.DefaultBucket, key)))
}
