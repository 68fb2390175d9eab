package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// Where stream and bucket republish what they have stored. A purge can outrun
// every consumer, but not this.
const (
	tapAll    = "chaos.>"
	tapEvents = "chaos.events"
	tapBucket = "chaos.bucket"
)

// Headers that the server adds to what it republishes.
const (
	headerStream   = "Nats-Stream"
	headerSubject  = "Nats-Subject"
	headerSequence = "Nats-Sequence"
	headerStored   = "Nats-Time-Stamp"
	headerLast     = "Nats-Last-Sequence"
)

// bucketTape is what was written to the bucket.
type bucketTape struct {
	mu        sync.Mutex
	last      uint64          // the highest sequence of the bucket's stream
	newest    uint64          // the highest sequence of an event that was projected
	projected map[uint64]bool // sequences of events
}

func (b *bucketTape) note(m audit.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = max(b.last, m.Sequence)
	if event, err := strconv.ParseUint(m.Header.Get(subjects.HeaderEventSequence), 10, 64); err == nil {
		if b.projected == nil {
			b.projected = map[uint64]bool{}
		}
		b.projected[event] = true
		b.newest = max(b.newest, event)
	}
}

func (b *bucketTape) end() (last, newest uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last, b.newest
}

func (b *bucketTape) rollBack(last uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = last
}

// without are the sequences of events that were never projected.
func (b *bucketTape) without(events []uint64) []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(events), func(s uint64) bool { return b.projected[s] })
}

// listen takes what stream and bucket republish.
func (r *recorder) listen() error {
	_, err := r.conn.Subscribe(tapAll, func(msg *nats.Msg) {
		stream, m, ok := republished(msg)
		switch {
		case !ok:
		case stream == subjects.DefaultStream:
			r.note(m)
			r.heardEvents.Add(1)
		default:
			r.bucket.note(m)
			r.heardWrites.Add(1)
		}
	})
	if err != nil {
		return fmt.Errorf("listen to what is stored: %w", err)
	}
	return nil
}

// republished is the message that a stream stored.
func republished(msg *nats.Msg) (stream string, m audit.Message, ok bool) {
	sequence, err := strconv.ParseUint(msg.Header.Get(headerSequence), 10, 64)
	if err != nil {
		return "", m, false
	}
	stored, _ := time.Parse(time.RFC3339Nano, msg.Header.Get(headerStored)) // zero: not known
	m = audit.Message{Subject: msg.Header.Get(headerSubject), Sequence: sequence, Header: maps.Clone(msg.Header), Data: msg.Data, Stored: stored}
	for _, added := range []string{headerStream, headerSubject, headerSequence, headerStored, headerLast} {
		delete(m.Header, added)
	}
	return msg.Header.Get(headerStream), m, true
}

// tap has stream and bucket republish what they store, if they do not yet.
func (r *recorder) tap(ctx context.Context) error {
	for name, to := range map[string]string{subjects.DefaultStream: tapEvents, subjects.BucketStream(subjects.DefaultBucket): tapBucket} {
		err := r.configure(ctx, name, func(cfg *jetstream.StreamConfig) bool {
			if cfg.RePublish != nil && strings.HasPrefix(cfg.RePublish.Destination, to) {
				return false
			}
			cfg.RePublish = &jetstream.RePublish{Source: ">", Destination: to + ".>"}
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// configure changes the configuration of a stream, unless change returns false.
func (r *recorder) configure(ctx context.Context, name string, change func(*jetstream.StreamConfig) bool) error {
	stream, err := r.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	cfg := stream.CachedInfo().Config
	if !change(&cfg) {
		return nil
	}
	_, err = r.js.UpdateStream(ctx, cfg)
	return err
}

// heard waits until what is stored now is heard of: the tap is on, and a message
// of the stream and one of the bucket came by it.
func (r *recorder) heard(ctx context.Context) error {
	events, writes := r.heardEvents.Load(), r.heardWrites.Load()
	return poll(ctx, storageTimeout, func(context.Context) string {
		if r.heardEvents.Load() == events || r.heardWrites.Load() == writes {
			return "nothing is published, or it is not heard of"
		}
		return ""
	})
}
