package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// rawReader follows the apps with a NATS client and the contract alone: it reads the bucket up to
// S, the highest sequence over entries and markers, then the stream from S+1. After a notice of
// loss it starts over. After a gap, which retention or a purge makes, it reads the bucket as soon as
// that is past the gap. It keeps its position over everything else.
type rawReader struct {
	w       *world
	name    string
	durable bool // it follows with a durable consumer, else with an ordered one
	nc      *nats.Conn
	js      jetstream.JetStream
	names   subjects.Subjects

	opening sync.Mutex // held while it makes a consumer

	mu       sync.Mutex
	apps     map[subjects.AppID]rawApp
	position uint64
	meanings map[uint64]string // of each sequence that was seen
	noticed  uint64            // sequence of the newest notice
	losses   []subjects.LostRange
	gap      uint64 // highest sequence that was passed over, 0 once the bucket is past it
	renew    bool   // the durable consumer is to be made again
	reads    int    // of the bucket
	faults   []string
}

// rawApp is the newest state of an app; app is nil if it is gone.
type rawApp struct {
	sequence uint64
	app      *appv1.App
}

// rawQuiet is how long no message comes before a reader looks whether it missed one.
const rawQuiet = 500 * time.Millisecond

// errStartOver ends following a stream; the bucket is read next.
var errStartOver = errors.New("the bucket is to be read")

// readers starts a reader of each kind. They end with the test.
func (w *world) readers() []*rawReader {
	w.t.Helper()
	return []*rawReader{w.rawReader("ordered", false), w.rawReader("durable", true)}
}

func (w *world) rawReader(name string, durable bool) *rawReader {
	w.t.Helper()
	r := &rawReader{
		w: w, name: name, durable: durable, meanings: map[uint64]string{},
		names: must[subjects.Subjects](w.t)(subjects.New(subjects.DefaultPrefix)),
		nc:    must[*nats.Conn](w.t)(nats.Connect(w.server.ClientURL(), nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))),
	}
	r.js = must[jetstream.JetStream](w.t)(jetstream.New(r.nc, jetstream.WithDefaultTimeout(2*time.Second)))
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
		r.nc.Close()
	})
	return r
}

func (r *rawReader) run(ctx context.Context) {
	started := false
	for ctx.Err() == nil {
		var err error
		if !started {
			err = r.start(ctx)
			started = err == nil
		}
		if started {
			err = r.follow(ctx)
			started = !errors.Is(err, errStartOver)
		}
		if err != nil && !errors.Is(err, errStartOver) { // JetStream is unavailable: wait a little
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// start takes the state and the position from the bucket.
func (r *rawReader) start(ctx context.Context) error {
	apps, position, err := r.readBucket(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apps, r.position, r.renew = apps, position, true
	if r.gap <= position {
		r.gap = 0
	}
	return nil
}

// readBucket reads the newest message of each key, in the order of the bucket's stream, and until
// there is no newer one: that is the state at one instant.
func (r *rawReader) readBucket(ctx context.Context) (apps map[subjects.AppID]rawApp, position uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	apps = map[subjects.AppID]rawApp{}
	consumer, err := r.js.CreateConsumer(ctx, subjects.BucketStream(subjects.DefaultBucket), jetstream.ConsumerConfig{
		FilterSubject: subjects.BucketFilter(subjects.DefaultBucket), DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		_ = r.js.DeleteConsumer(ctx, subjects.BucketStream(subjects.DefaultBucket), consumer.CachedInfo().Name) // it expires
	}()
	for pending := consumer.CachedInfo().NumPending; pending > 0; {
		batch, err := consumer.Fetch(int(min(pending, 500)), jetstream.FetchContext(ctx))
		if err != nil {
			return nil, 0, err
		}
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return nil, 0, err
			}
			pending = meta.NumPending
			id, state, err := r.entry(msg)
			if err != nil {
				return nil, 0, err
			}
			apps[id] = state
			position = max(position, state.sequence)
		}
		if err := batch.Error(); err != nil {
			return nil, 0, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	return apps, position, nil
}

// entry reads a message of the bucket.
func (r *rawReader) entry(msg jetstream.Msg) (subjects.AppID, rawApp, error) {
	key, err := subjects.ParseBucketSubject(subjects.DefaultBucket, msg.Subject())
	if err != nil {
		return subjects.AppID{}, rawApp{}, err
	}
	id, err := subjects.ParseKey(key)
	if err != nil {
		return id, rawApp{}, err
	}
	h := msg.Headers()
	state := rawApp{}
	if state.sequence, err = strconv.ParseUint(h.Get(subjects.HeaderEventSequence), 10, 64); err != nil {
		return id, state, fmt.Errorf("the entry of %s: %w", id, err)
	}
	if h.Get(subjects.HeaderKVOperation) == "" {
		state.app = &appv1.App{}
		err = appv1.Decode(msg.Data(), h.Get(subjects.CEDataContentType), state.app)
	}
	r.mean(state.sequence, h)
	return id, state, err
}

// mean notes what a sequence stands for; it must never stand for two things.
func (r *rawReader) mean(sequence uint64, h nats.Header) {
	meaning := fmt.Sprintf("%s %s of %s", h.Get(subjects.CEType), h.Get(subjects.CEID), h.Get(subjects.CESubject))
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, seen := r.meanings[sequence]; seen && was != meaning {
		r.faults = append(r.faults, fmt.Sprintf("sequence %d was %s and is %s", sequence, was, meaning))
	}
	r.meanings[sequence] = meaning
}

// follow applies the stream's messages from the position on, until something fails.
func (r *rawReader) follow(ctx context.Context) error {
	messages, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		wait, cancel := context.WithTimeout(ctx, rawQuiet)
		msg, err := messages.Next(jetstream.NextContext(wait))
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			if err := r.look(ctx); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			if err := r.take(msg); err != nil {
				return err
			}
		}
		if err := r.fillGap(ctx); err != nil {
			return err
		}
	}
}

// open makes a consumer behind the position. A durable one is kept while it is there.
func (r *rawReader) open(ctx context.Context) (jetstream.MessagesContext, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	from := r.at() + 1
	if !r.durable {
		consumer, err := r.js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{
			FilterSubjects: []string{r.names.Events()}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
			InactiveThreshold: time.Minute, MaxResetAttempts: 1,
		})
		if err != nil {
			return nil, err
		}
		return consumer.Messages()
	}
	kept, err := r.js.Consumer(ctx, subjects.DefaultStream, r.name)
	switch {
	case err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, err
	case err == nil && !r.renewed():
		return kept.Messages()
	case err == nil:
		if err := r.js.DeleteConsumer(ctx, subjects.DefaultStream, r.name); err != nil {
			return nil, err
		}
	}
	consumer, err := r.js.CreateConsumer(ctx, subjects.DefaultStream, jetstream.ConsumerConfig{
		Durable: r.name, FilterSubject: r.names.Events(), DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.renew = false
	r.mu.Unlock()
	return consumer.Messages()
}

func (r *rawReader) renewed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.renew
}

func (r *rawReader) at() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.position
}

// look finds out whether a consumer is silent although there is something behind the position.
func (r *rawReader) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := r.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return err
	}
	if last := stream.CachedInfo().State.LastSeq; last > r.at() {
		r.mu.Lock()
		r.renew = true
		r.mu.Unlock()
		return fmt.Errorf("the stream is at %d, and nothing comes behind %d", last, r.at())
	}
	return nil
}

// take applies a message.
func (r *rawReader) take(msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	if r.durable {
		if err := msg.Ack(); err != nil {
			return err
		}
	}
	sequence := meta.Sequence.Stream
	id, kind, err := r.names.ParseEvent(msg.Subject())
	switch {
	case r.names.IsLost(msg.Subject()):
		r.pass(sequence)
		return nil
	case r.names.IsNotice(msg.Subject()):
		return r.notice(sequence, msg.Headers())
	case err != nil:
		r.fault("sequence %d is on subject %s: %v", sequence, msg.Subject(), err)
		return nil
	}
	r.mean(sequence, msg.Headers())
	if sequence <= r.at() {
		return nil // a durable consumer that was rolled back with its stream
	}
	var w appv1.WatchResponse
	if err := appv1.Decode(msg.Data(), msg.Headers().Get(subjects.CEDataContentType), &w); err != nil {
		r.fault("sequence %d: %v", sequence, err)
	}
	state := rawApp{sequence: sequence}
	switch kind {
	case subjects.Created:
		state.app = w.GetCreateEvent().GetApp()
	case subjects.Updated:
		state.app = w.GetUpdateEvent().GetUpdatedApp()
	}
	r.pass(sequence)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apps[id] = state
	return nil
}

// pass moves the position on, and notes a gap that no notice explains.
func (r *rawReader) pass(sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := sequence - 1; s > r.position; s-- {
		if !slices.ContainsFunc(r.losses, func(lost subjects.LostRange) bool { return lost.Contains(s) }) {
			r.gap = max(r.gap, s)
			break
		}
	}
	r.position = max(r.position, sequence)
}

// notice takes in a loss; each ends what was known.
func (r *rawReader) notice(sequence uint64, h nats.Header) error {
	lost, err := subjects.ParseNotice(h.Get(subjects.HeaderLostFrom), h.Get(subjects.HeaderLostTo))
	if err != nil {
		r.fault("notice %d: %v", sequence, err)
		return nil
	}
	r.mu.Lock()
	known := sequence <= r.noticed
	if !known {
		r.noticed = sequence
		r.losses = append(r.losses, lost)
	}
	r.mu.Unlock()
	if !known {
		return errStartOver
	}
	r.pass(sequence)
	return nil
}

// fillGap starts over once the bucket is past what was passed over.
func (r *rawReader) fillGap(ctx context.Context) error {
	r.mu.Lock()
	gap := r.gap
	r.mu.Unlock()
	if gap == 0 {
		return nil
	}
	_, position, err := r.readBucket(ctx)
	if err != nil {
		return err
	}
	if position >= gap {
		return errStartOver
	}
	return nil
}

func (r *rawReader) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// reaches waits until the reader's state is that of the cluster, and fails if a sequence had two
// meanings or if it did not learn of exactly these losses.
func (r *rawReader) reaches(losses ...subjects.LostRange) {
	r.w.t.Helper()
	eventually(r.w.t, "the "+r.name+" reader is at the cluster's state", r.drift)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fault := range r.faults {
		r.w.t.Errorf("the %s reader: %s", r.name, fault)
	}
	if !slices.Equal(r.losses, losses) {
		r.w.t.Errorf("the %s reader learned of the losses %v, want %v", r.name, r.losses, losses)
	}
	r.w.t.Logf("the %s reader: position %d, %d sequences seen, the bucket read %d times", r.name, r.position, len(r.meanings), r.reads)
}

// drift compares the reader's state with the cluster.
func (r *rawReader) drift() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.w.driftOf(r.apps)
}

// driftOf compares the apps that a reader or the bucket has with the cluster.
func (w *world) driftOf(apps map[subjects.AppID]rawApp) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kservice.GroupVersion().WithKind("ServiceList"))
	if err := w.Client.List(w.t.Context(), list, inNamespace(w.namespace), managed()); err != nil {
		return err
	}
	exists := map[subjects.AppID]bool{}
	for i := range list.Items {
		svc := w.service(&list.Items[i])
		want, err := kservice.Convert(svc, nil, w.config().App)
		if err != nil {
			return err
		}
		id, err := kservice.ID(svc)
		if err != nil {
			return err
		}
		exists[id] = true
		got := apps[id]
		if got.app == nil {
			return fmt.Errorf("%s is not there, the last of it is sequence %d", id, got.sequence)
		}
		if !proto.Equal(got.app, want) { // no Revision is part of these tests
			return fmt.Errorf("%s is\n%v at sequence %d, want\n%v", id, got.app, got.sequence, want)
		}
	}
	for id, got := range apps {
		if got.app != nil && !exists[id] {
			return fmt.Errorf("%s is there by sequence %d, the cluster does not have it", id, got.sequence)
		}
	}
	return nil
}

// bucketIsCluster waits until the bucket is what the cluster has.
func (w *world) bucketIsCluster(reader *rawReader) {
	w.t.Helper()
	eventually(w.t, "the bucket is what the cluster has", func() error {
		apps, _, err := reader.readBucket(w.t.Context())
		if err != nil {
			return err
		}
		return w.driftOf(apps)
	})
}

// knows waits until the reader is at a position.
func (r *rawReader) knows(position uint64) {
	r.w.t.Helper()
	eventually(r.w.t, fmt.Sprintf("the %s reader is at %d", r.name, position), func() error {
		if at := r.at(); at < position {
			return fmt.Errorf("it is at %d", at)
		}
		return nil
	})
}
