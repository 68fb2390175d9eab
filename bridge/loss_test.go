package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// session is one of a bridge that has just started and has read a checkpoint from the Lease.
func (r *rig) session(known store.Checkpoint, log *zap.Logger) *session {
	r.t.Helper()
	b := &Bridge{
		cfg: Config{
			ClusterName: "test", Prefix: subjects.DefaultPrefix, Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket,
			StreamReplicas: 1, Encoding: EncodingJSON,
		},
		subjects: r.storage.Subjects, nc: r.nc, js: r.js, writes: r.js, appends: r.js, log: log,
		metrics: testMetrics(), clusterUID: testCluster, source: watch.NewSource(log, encodertest.Keeper, func(string) {}),
	}
	readLease(&b.memory.acknowledged, known)
	return b.newSession(nil)
}

// renew gives a session the storage and the bucket of another start.
func (r *rig) renew(s *session) {
	b := &Bridge{cfg: s.cfg, subjects: s.subjects, nc: s.nc, js: r.js, log: s.log, clusterUID: testCluster}
	s.storage, s.bucket = b.newStorage(), b.newBucket(r.js)
}

func fill(ctx context.Context, st *store.Storage, to uint64) error {
	_, info, err := store.LookUp(ctx, st.JS, st.Config.Stream)
	if err == nil {
		_, err = st.Fill(ctx, subjects.LostRange{From: 2, To: to}, info.State.LastSeq, func() {})
	}
	return err
}

// One acknowledgement of a filler is lost, as when the stream's leader dies and the connection does
// not. The filling must end, with or without an error.
func TestFillWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.append(r.event())
	var once sync.Once
	far := r.through(0, func(payload []byte) (lost bool) {
		if bytes.Contains(payload, []byte(`"seq":7`)) && bytes.Contains(payload, []byte(`"stream":"FLYTE_APPS"`)) {
			once.Do(func() { lost = true })
		}
		return lost
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fill(ctx, far.storage, 20) }()
	select {
	case err := <-done:
		t.Log("ended:", err)
	case <-time.After(suite.Patience):
		t.Error("the filling waits for ever for an acknowledgement")
		cancel()
		t.Log("cancelled:", <-done)
	}
}

// The client gives up while fillers are under way.
func TestFillOnAClosedConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.append(r.event())
	far := r.through(100*time.Millisecond, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fill(ctx, far.storage, 1_000_000) }()
	r.poll("fillers are under way", func() bool { return r.lastSequence() >= 50 })
	far.nc.Close()
	select {
	case err := <-done:
		t.Log("ended:", err)
	case <-time.After(suite.Patience):
		t.Error("the filling waits for ever although the connection is closed")
		cancel()
		t.Log("cancelled:", <-done)
	}
}

// Filling is interrupted when its last filler is stored and not acknowledged yet. The next call
// removes the fillers.
func TestFillInterruptedAtItsEnd(t *testing.T) {
	t.Parallel()
	const to = 20
	r := newRig(t)
	r.append(r.event())
	acknowledgement := fmt.Appendf(nil, `"seq":%d`, to)
	far := r.through(0, func(payload []byte) bool {
		return bytes.Contains(payload, acknowledgement) && bytes.Contains(payload, []byte(`"stream":"FLYTE_APPS"`))
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fill(ctx, far.storage, to) }()
	r.poll("the last filler is stored", func() bool { return r.lastSequence() == to })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want that it is interrupted", err)
	}
	fillers := func() uint64 {
		info, err := r.stream.Info(t.Context(), jetstream.WithSubjectFilter(r.storage.Subjects.Lost()))
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Subjects[r.storage.Subjects.Lost()]
	}
	if got := fillers(); got != to-1 {
		t.Fatalf("the stream holds %d fillers, want %d: this test tests nothing", got, to-1)
	}
	if _, err := r.session(store.Checkpoint{}, zap.NewNop()).open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := fillers(); got > 0 {
		t.Errorf("the stream still holds %d fillers", got)
	}
	if got := r.lastSequence(); got != to+1 {
		t.Errorf("the stream ends at %d, want %d and the notice", got, to)
	}
}

// An operator raises a limit while a lost range is filled.
func TestHealKeepsTheConfiguration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := r.stream.CachedInfo().Config
	cfg.MaxMsgs = 1000
	if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r.append(r.event())
	if err := r.storage.LookUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := r.storage.HealStream(t.Context(), store.Loss{Stream: subjects.LostRange{From: 2, To: 40_000}, End: 1}, func() {})
		done <- err
	}()
	r.poll("fillers are under way", func() bool { return r.lastSequence() >= 2000 })
	stream, err := r.js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	cfg = stream.CachedInfo().Config
	cfg.MaxMsgs = 5000
	if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if info, err := r.stream.Info(t.Context()); err != nil || info.Config.MaxMsgs != 5000 {
		t.Errorf("max_msgs is %d (%v), an operator set 5000", info.Config.MaxMsgs, err)
	}
}

// Another bridge, without leader election, publishes and projects all the time. It is no reason to
// suspect a loss.
func TestOpenBesideABusyWriter(t *testing.T) {
	t.Parallel()
	const apps = 1_500
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	r.publishApps(apps)
	p, snap := r.newProjector(zap.NewNop())
	busy.Go(func() { _ = p.Run(ctx, snap) })
	if err := p.WaitWritten(ctx, apps); err != nil {
		t.Fatal(err)
	}
	busy.Go(func() {
		w := r.next()
		tick := time.NewTicker(10 * time.Millisecond) // not even 100 events a second
		defer tick.Stop()
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		for v := 2; ; v++ {
			select {
			case <-tick.C:
				w.observe(fmt.Sprint("a", v%apps), strconv.Itoa(v), false)
			case <-ctx.Done():
				t.Log("the busy writer ended:", <-ended)
				return
			}
		}
	})
	var failed []string
	const tries = 5
	for range tries {
		if _, err := r.session(store.Checkpoint{}, zap.NewNop()).open(t.Context()); err != nil {
			failed = append(failed, err.Error())
		}
	}
	cancel()
	busy.Wait()
	if len(failed) > 0 {
		t.Errorf("%d of %d tries to open suspect a loss beside a bridge that publishes:\n%s", len(failed), tries, strings.Join(failed, "\n"))
	}
}

// An operator tries another stream and bucket, and goes back to the first ones. Nothing is lost.
func TestCheckpointOfAnotherStream(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publishApps(10)
	r.project()
	first := r.session(store.Checkpoint{}, zap.NewNop())
	if _, err := first.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease := first.acknowledged.Checkpoint() // what the Lease holds

	cfg := r.stream.CachedInfo().Config
	cfg.Name, cfg.Subjects = "AWAY", []string{"away.>"} // out of the way
	second := r.session(lease, zap.NewNop())
	second.cfg.Stream, second.cfg.Bucket, second.cfg.Prefix = "TRIAL", "trial", "trial.apps"
	var err error
	if second.subjects, err = subjects.New("trial.apps"); err != nil {
		t.Fatal(err)
	}
	r.renew(second)
	if _, err := second.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		ack, err := r.js.Publish(t.Context(), "trial.apps.events.p.d.a.updated", nil)
		if err != nil {
			t.Fatal(err)
		}
		second.acknowledged.NoteStream(ack.Sequence)
	}
	t.Logf("first %+v, trial %+v", lease, second.acknowledged.Checkpoint())
	lease = second.acknowledged.Checkpoint()

	before := r.lastSequence()
	core, logs := observer.New(zap.InfoLevel)
	third := r.session(lease, zap.New(core))
	if _, err := third.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lost := logs.FilterMessage("the stream lost acknowledged events"); lost.Len() > 0 || r.lastSequence() != before {
		t.Errorf("a healthy stream that ended at %d ends at %d; logged: %v", before, r.lastSequence(), lost.All())
	}
}

// The bucket is deleted under a bridge. That is no lost tail.
func TestBucketDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publishApps(10)
	r.project()
	s := r.session(store.Checkpoint{}, zap.NewNop())
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.acknowledged.NoteBucket(10)
	if err := r.js.DeleteKeyValue(t.Context(), subjects.DefaultBucket); err != nil {
		t.Fatal(err)
	}
	r.renew(s)
	snap, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := s.newProjector(snap)
	if err := r.runUntil(p, snap, 10); err != nil {
		t.Errorf("the projection into a bucket that was just made: %v", err)
	}
}

// A standby has seen the checkpoint of a stream that was replaced since. It must not replace the
// checkpoint of the present one when it takes over.
func TestStandbyWithAnOldIdentity(t *testing.T) {
	t.Parallel()
	standby := &store.Acknowledged{}
	old, now := history(100, 100), history(20, 30)
	old.StreamID = "old"
	readLease(standby, old)
	readLease(standby, now) // the Lease as the leader writes it by now
	if got := standby.Checkpoint(); got != now {
		t.Errorf("the standby goes by %+v, the Lease holds %+v", got, now)
	}
}

// A leader of the bucket's stream that has not applied everything yet is no loss of the bucket.
func TestConfirmsTheBucket(t *testing.T) {
	t.Parallel()
	for deadline := time.Now().Add(suite.Patience); !confirmsTheBucket(t); {
		if time.Now().After(deadline) {
			t.Fatal("it was never in time")
		}
	}
}

func confirmsTheBucket(t *testing.T) (inTime bool) {
	t.Helper()
	r := newRig(t)
	r.publishApps(10)
	r.project()
	core, logs := observer.New(zap.InfoLevel)
	s := r.session(store.Checkpoint{}, zap.New(core))
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.acknowledged.NoteBucket(12) // two more are on their way
	r.renew(s)
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		_, err := s.open(t.Context())
		done <- err
	}()
	<-time.After(store.TailConfirm / 2)
	m, err := store.LastMessage(t.Context(), r.js, subjects.BucketStream(subjects.DefaultBucket), ">")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: nats.Header{
			subjects.CEType: m.Header[subjects.CEType], subjects.HeaderUID: m.Header[subjects.HeaderUID], subjects.CEDataContentType: m.Header[subjects.CEDataContentType],
			subjects.HeaderResourceVersion: m.Header[subjects.HeaderResourceVersion], subjects.HeaderEventSequence: m.Header[subjects.HeaderEventSequence], subjects.CEID: m.Header[subjects.CEID],
		}, Data: m.Data}); err != nil {
			t.Fatal(err)
		}
	}
	late := time.Since(began) >= store.TailConfirm
	t.Log(<-done)
	if late {
		return false // the entries came when they counted as lost already
	}
	if lost := logs.FilterMessage("the bucket lost acknowledged entries"); lost.Len() > 0 {
		t.Errorf("a bucket that lost nothing: %v", lost.All()[0].ContextMap())
	}
	return true
}

// A stream from which nobody may purge.
func TestFillWhereNothingCanBePurged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := r.stream.CachedInfo().Config
	cfg.DenyPurge = true
	if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := fill(t.Context(), r.storage, 20); err == nil {
			return
		} else {
			t.Logf("try %d: %v", i, err)
		}
	}
	t.Errorf("an empty stream stays at %d", r.lastSequence())
}

// rolledBack is a rig whose stream holds ten events, and whose bucket reflects them.
func rolledBack(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.publishApps(10)
	r.project()
	return r
}

// healedWell checks a stream that lost what came after sequence 10.
func (r *rig) healedWell(to uint64) {
	r.t.Helper()
	ctx := r.t.Context()
	info, err := r.stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		r.t.Fatal(err)
	}
	if info.State.Subjects[r.storage.Subjects.Lost()] > 0 {
		r.t.Errorf("the stream still holds %d fillers", info.State.Subjects[r.storage.Subjects.Lost()])
	}
	if n := info.State.Subjects[r.storage.Subjects.Notice()]; n != 1 {
		r.t.Errorf("the stream holds %d notices", n)
	}
	if info.State.LastSeq <= to {
		r.t.Errorf("the stream ends at %d", info.State.LastSeq)
	}
	if err := r.storage.LookUp(ctx); err != nil {
		r.t.Fatal(err)
	}
	if err := r.storage.ReadLosses(ctx); err != nil {
		r.t.Fatal(err)
	}
	if got, want := r.storage.Lost(), (subjects.LostRange{From: 11, To: to}); len(got) != 1 || got[0] != want {
		r.t.Errorf("the stream names the lost ranges %v, want %v", got, want)
	}
	if m := info.Config.Metadata; m[subjects.MetadataLostPending] != "" || m[subjects.MetadataLostRanges] != "" {
		r.t.Errorf("the metadata are %v", m)
	}
}

// A heal that is interrupted again and again.
func TestInterruptedHeal(t *testing.T) {
	t.Parallel()
	for round := range 3 {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) { interruptedHeal(t, round) })
	}
}

func interruptedHeal(t *testing.T, round int) {
	t.Parallel()
	r := rolledBack(t)
	if err := r.storage.LookUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := r.session(store.Checkpoint{}, zap.NewNop())
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	to := uint64(30_000)
	s.acknowledged.NoteStream(to)
	s.acknowledged.NoteBucket(3_000)
	tries := 0
	for ; ; tries++ {
		ctx, cancel := context.WithTimeout(t.Context(), store.TailConfirm+time.Duration(20+60*(tries+round))*time.Millisecond)
		r.renew(s)
		_, err := s.open(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	t.Logf("%d interruptions", tries)
	r.healedWell(to)
}

// Two bridges heal the same stream at once. They know different ends of it.
func TestTwoHealAtOnce(t *testing.T) {
	t.Parallel()
	for range 2 {
		r := rolledBack(t)
		a, b := r.session(store.Checkpoint{}, zap.NewNop()), r.session(store.Checkpoint{}, zap.NewNop())
		for _, s := range []*session{a, b} {
			if _, err := s.open(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		a.acknowledged.NoteStream(5000)
		b.memory.acknowledged.NoteStream(4990)
		var both sync.WaitGroup
		for _, s := range []*session{a, b} {
			both.Go(func() {
				var err error
				for range 20 {
					r.renew(s)
					if _, err = s.open(t.Context()); err == nil {
						return
					}
				}
				t.Errorf("not opened: %v", err)
			})
		}
		both.Wait()
		info, err := r.stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.storage.ReadLosses(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Log(info.State.LastSeq, info.State.Subjects, r.storage.Lost())
		if !slices.Contains(r.storage.Lost(), subjects.LostRange{From: 11, To: 5000}) || info.State.Subjects[r.storage.Subjects.Lost()] > 0 {
			t.Errorf("the lost ranges are %v; the stream holds %v", r.storage.Lost(), info.State.Subjects)
		}
	}
}

// Somebody wrote an entry by hand, of an event that cannot be: no reason to fill the stream up to
// there.
func TestEntryAheadByHand(t *testing.T) {
	t.Parallel()
	r := rolledBack(t)
	s := r.session(store.Checkpoint{}, zap.NewNop())
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := store.LastMessage(t.Context(), r.js, subjects.BucketStream(subjects.DefaultBucket), ">")
	if err != nil {
		t.Fatal(err)
	}
	m.Header.Set(subjects.HeaderEventSequence, "1000000000000")
	m.Header.Del(subjects.HeaderExpectedLastSequence)
	if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s = r.session(store.Checkpoint{}, zap.NewNop())
	_, err = s.open(ctx)
	if end := r.lastSequence(); end > 10 {
		t.Errorf("after 5 s the stream ends at %d, no event was appended to it: %v", end, err)
	}
}

// A bucket that reflects another stream is not written, and the stream is not marked.
func TestOtherStreamID(t *testing.T) {
	t.Parallel()
	r := rolledBack(t)
	if err := r.storage.LookUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.storage.Mark(t.Context(), "stream", r.storage.Stream, map[string]string{subjects.MetadataStreamID: "another"}); err != nil {
		t.Fatal(err)
	}
	_, err := r.session(store.Checkpoint{}, zap.NewNop()).open(t.Context())
	var config *app.ConfigError
	if !errors.As(err, &config) || config.Field != "bucket" || !strings.Contains(config.Problem, "stream FLYTE_APPS has id another") {
		t.Errorf("got %v, want a ConfigError of the bucket", err)
	}
}

// A stream that is full and refuses new messages is not filled, and loses nothing. With room it is.
func TestFillFullStream(t *testing.T) {
	t.Parallel()
	r := rolledBack(t)
	limit := func(messages int64) {
		t.Helper()
		cfg := r.stream.CachedInfo().Config
		cfg.MaxMsgs, cfg.Discard = messages, jetstream.DiscardNew
		if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	limit(10)
	s := r.session(store.Checkpoint{}, zap.NewNop())
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.acknowledged.NoteStream(50)
	r.renew(s)
	if _, err := s.open(t.Context()); err == nil || r.lastSequence() != 10 || r.count() != 10 {
		t.Errorf("got %v; the stream ends at %d and holds %d messages, want 10 of 10", err, r.lastSequence(), r.count())
	}
	limit(12)
	r.renew(s)
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.healedWell(50)
	if r.count() != 11 {
		t.Errorf("the stream holds %d messages, want ten events and the notice", r.count())
	}
}
