package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// patience bounds a call of NATS. Nothing is expected to come near it.
const patience = 5 * time.Minute

func connect(address string) (jetstream.JetStream, error) {
	nc, err := nats.Connect("nats://"+address, nats.Timeout(patience))
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
}

// streams are those of a bridge.
type streams struct {
	js             jetstream.JetStream
	events, bucket jetstream.Stream
	last           uint64 // of the events
}

func openStreams(ctx context.Context, address string) (*streams, error) {
	js, err := connect(address)
	if err != nil {
		return nil, err
	}
	s := &streams{js: js}
	if s.events, err = js.Stream(ctx, subjects.DefaultStream); err == nil {
		s.bucket, err = js.Stream(ctx, subjects.BucketStream(subjects.DefaultBucket))
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.last = s.events.CachedInfo().State.LastSeq
	return s, nil
}

func (s *streams) close() { s.js.Conn().Close() }

// reached reports whether the stream has an event.
func (s *streams) reached(ctx context.Context, sequence uint64) bool {
	info, err := s.events.Info(ctx)
	if err != nil {
		return false
	}
	s.last = info.State.LastSeq
	return s.last >= sequence
}

// projected reports whether the bucket shows an event.
func (s *streams) projected(ctx context.Context, sequence uint64) bool {
	m, err := s.newest(ctx, s.bucket)
	if err != nil {
		return false
	}
	shown, err := strconv.ParseUint(m.Header.Get(subjects.HeaderEventSequence), 10, 64)
	return err == nil && shown >= sequence
}

func (s *streams) newest(ctx context.Context, of jetstream.Stream) (*jetstream.RawStreamMsg, error) {
	info, err := of.Info(ctx)
	if err != nil {
		return nil, err
	}
	return of.GetMsg(ctx, info.State.LastSeq)
}

// save writes the newest event and entry to a file, for the limits.
func (s *streams) save(ctx context.Context, file string) error {
	event, err := s.newest(ctx, s.events)
	if err != nil {
		return err
	}
	entry, err := s.newest(ctx, s.bucket)
	if err != nil {
		return err
	}
	text, err := json.Marshal(messages{&nats.Msg{Header: event.Header, Data: event.Data}, &nats.Msg{Header: entry.Header, Data: entry.Data}})
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// arrivals are the times at which versions arrived.
type arrivals struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (a *arrivals) add(version string) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[version] = now
}

func (a *arrivals) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

// latency measures what lies between a version in a watch and its event at an ordered consumer.
func (r *round) latency(ctx context.Context, s *streams, found figures) error {
	watched, delivered := &arrivals{at: map[string]time.Time{}}, &arrivals{at: map[string]time.Time{}}
	ordered, err := s.js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy, HeadersOnly: true})
	if err != nil {
		return err
	}
	consuming, err := ordered.Consume(func(m jetstream.Msg) { delivered.add(m.Headers().Get(subjects.HeaderResourceVersion)) })
	if err != nil {
		return err
	}
	defer consuming.Stop()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(r.cfg.paced/r.cfg.rate)*time.Second)
	defer cancel()
	version := firstVersion + 2*r.apps + r.cfg.updates
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf(
		"http://%s/apis/serving.knative.dev/v1/namespaces/%s/services?watch=true&resourceVersion=%d", r.stub, testenv.DefaultNamespace, version), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewReaderSize(resp.Body, 1<<20)
		for n := 0; n < r.cfg.paced; n++ { // versions rise by one
			if _, err := lines.ReadSlice('\n'); err != nil {
				return
			}
			watched.add(strconv.Itoa(version + n + 1))
		}
	})
	defer reading.Wait()
	defer cancel()
	if err := r.change(ctx, r.cfg.paced, r.cfg.rate); err != nil {
		return err
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for watched.len() < r.cfg.paced || delivered.len() < r.cfg.paced {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%d changes in the watch, %d events of %d: %w", watched.len(), delivered.len(), r.cfg.paced, context.Cause(ctx))
		}
	}
	var added []time.Duration
	for version, at := range watched.at {
		event, ok := delivered.at[version]
		if !ok {
			return errors.New("no event of version " + version)
		}
		added = append(added, event.Sub(at))
	}
	slices.Sort(added)
	found[figureMedian], found[figureTail] = float64(added[len(added)/2]), float64(added[len(added)*99/100])
	return nil
}
