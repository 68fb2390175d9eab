package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/subjects"
)

// downNATS stops the server; its storage is then as it would be read by the next one.
func (w *world) downNATS() {
	w.t.Helper()
	w.server.Shutdown()
	w.server.WaitForShutdown()
}

// upNATS starts the server again and waits until JetStream answers.
func (w *world) upNATS(port int) {
	w.t.Helper()
	w.startNATS(port)
	eventually(w.t, "JetStream answers", func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		_, err := w.js.Stream(ctx, subjects.DefaultStream)
		return err
	})
}

// storageCopy is a copy of the server's storage.
type storageCopy string

// streamsDir is where a server keeps the streams of the default account.
var streamsDir = filepath.Join("jetstream", "$G", "streams") //nolint:gochecknoglobals // a constant

// copyStorage copies the storage of a server that is down.
func (w *world) copyStorage() storageCopy {
	w.t.Helper()
	to := w.t.TempDir()
	must[any](w.t)(nil, os.CopyFS(to, os.DirFS(w.dir)))
	return storageCopy(to)
}

// restore puts streams back to what they were, while the server is down.
func (w *world) restore(from storageCopy, streams ...string) {
	w.t.Helper()
	for _, stream := range streams {
		part := filepath.Join(streamsDir, stream)
		must[any](w.t)(nil, os.RemoveAll(filepath.Join(w.dir, part)))
		must[any](w.t)(nil, os.CopyFS(filepath.Join(w.dir, part), os.DirFS(filepath.Join(string(from), part))))
	}
}

// streamState is the state of a stream.
func (w *world) streamState(name string) jetstream.StreamState {
	w.t.Helper()
	return must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), name)).CachedInfo().State
}

// messages are all messages of a stream, by sequence.
func (w *world) messages(name string) map[uint64]*jetstream.RawStreamMsg {
	w.t.Helper()
	stream := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), name))
	state := stream.CachedInfo().State
	found := map[uint64]*jetstream.RawStreamMsg{}
	for seq := max(1, state.FirstSeq); seq <= state.LastSeq; seq++ {
		msg, err := stream.GetMsg(w.t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		found[seq] = must[*jetstream.RawStreamMsg](w.t)(msg, err)
	}
	return found
}

// sameMessage reports whether two messages of one sequence are the same.
func sameMessage(a, b *jetstream.RawStreamMsg) bool {
	return a.Subject == b.Subject && string(a.Data) == string(b.Data) &&
		a.Header.Get(subjects.CEID) == b.Header.Get(subjects.CEID) && a.Time.Equal(b.Time)
}

// metricOf is the value of a metric with a label.
func (r *running) metricOf(name, label, want string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == want {
					sum += value(m)
				}
			}
		}
	}
	return sum
}

// caughtUp waits until the stream ends at a sequence and the bucket is what the cluster has.
func (w *world) caughtUp(last uint64, reader *rawReader) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("the stream ends at %d", last), func() error {
		switch now := w.streamState(subjects.DefaultStream).LastSeq; {
		case now > last:
			return fmt.Errorf("%w: it ends at %d", errFatal, now)
		case now < last:
			return fmt.Errorf("it ends at %d", now)
		}
		return nil
	})
	w.bucketIsCluster(reader)
}

// lossCase is one way to lose acknowledged messages.
type lossCase struct {
	name           string
	stream, bucket bool // what is put back to an earlier copy
	up             bool // the bridge runs meanwhile
	elected        bool // it has a Lease, whose checkpoint knows
	unnoticed      bool // nobody knows
}

func (c lossCase) lostStreams() (names []string) {
	if c.stream {
		names = append(names, subjects.DefaultStream)
	}
	if c.bucket {
		names = append(names, subjects.BucketStream(subjects.DefaultBucket))
	}
	return names
}

// The NATS server comes back with less than it had acknowledged, as after a power failure or with a
// volume that was rolled back. The bridge names what is lost, is not ready until it is healed,
// gives no sequence to two things, and publishes what is owed; readers of stream and bucket end at
// the cluster's state.
func TestLostTail(t *testing.T) {
	t.Parallel()
	for _, c := range []lossCase{
		{name: "stream, bridge up", stream: true, up: true},
		{name: "bucket, bridge up", bucket: true, up: true},
		{name: "both, bridge up", stream: true, bucket: true, up: true},
		{name: "both, bridge up and elected", stream: true, bucket: true, up: true, elected: true},
		{name: "stream, elected bridge down", stream: true, elected: true},
		{name: "bucket, elected bridge down", bucket: true, elected: true},
		{name: "both, elected bridge down", stream: true, bucket: true, elected: true},
		{name: "stream, bridge down", stream: true},
		{name: "bucket, bridge down", bucket: true, unnoticed: true},
		{name: "both, bridge down", stream: true, bucket: true, unnoticed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			newWorld(t).loses(c)
		})
	}
}

func (w *world) loses(c lossCase) {
	t, ctx := w.t, w.t.Context()
	bucketStream := subjects.BucketStream(subjects.DefaultBucket)
	service := must[*servingv1.Service](t)
	cfg := w.config()
	if c.elected {
		cfg = w.elected("first")
	}
	still, changed, gone, again := w.create(w.app("still")), w.create(w.app("changed")), w.create(w.app("gone")), w.create(w.app("again"))
	r := w.start(cfg)
	port := w.port()
	w.waitFor(0, "created still", "created changed", "created gone", "created again")
	readers := w.readers()
	w.caughtUp(4, readers[0])
	for _, reader := range readers {
		reader.knows(4)
	}

	w.downNATS()
	copied := w.copyStorage()
	w.upNATS(port)
	r.waitReady()
	early := w.messages(bucketStream)
	kept := w.streamState(bucketStream).LastSeq

	// The tail that is lost.
	for i := range 3 {
		service(w.Failed(ctx, changed, "Broken", fmt.Sprint("try ", i)))
	}
	must[any](t)(nil, w.Client.Delete(ctx, gone))
	must[any](t)(nil, w.Client.Delete(ctx, again))
	w.create(w.app("again"))
	born := w.create(w.app("born"))
	must[any](t)(nil, w.Client.Delete(ctx, w.create(w.app("came-and-went"))))
	const to = 4 + 3 + 1 + 2 + 1 + 2
	w.caughtUp(to, readers[0])
	for _, reader := range readers {
		reader.knows(to)
	}
	eventually(t, "the bucket is written", func() error {
		if _, position, err := readers[0].readBucket(ctx); err != nil || position != to {
			return fmt.Errorf("it is at %d: %w", position, err)
		}
		return nil
	})
	before, late := w.messages(subjects.DefaultStream), w.messages(bucketStream)
	end := w.streamState(bucketStream).LastSeq
	r.waitReady()
	if !c.up {
		must[any](t)(nil, r.stop())
	}

	w.downNATS()
	if c.up {
		eventually(t, "the bridge notices that NATS is down", func() error {
			if r.nc.IsConnected() {
				return errors.New("it is connected")
			}
			return nil
		})
	}
	w.restore(copied, c.lostStreams()...)
	service(w.Progressing(ctx, still))
	must[any](t)(nil, w.Client.Delete(ctx, born))
	w.startNATS(port)
	if !c.up {
		r = w.launch(cfg, nil)
	}
	r.healed(c, to, end)
	w.create(w.app("late"))
	service(w.Progressing(ctx, changed))
	w.bucketIsCluster(readers[0])
	r.waitReady()

	if c.unnoticed && c.stream {
		return // sequences that nobody remembers are given again
	}
	if !c.stream {
		for _, reader := range readers {
			reader.reaches()
		}
	} else {
		lost := subjects.LostRange{From: 5, To: to}
		for _, reader := range readers {
			reader.reaches(lost)
		}
		w.filled(lost, before)
	}
	if !c.unnoticed {
		w.bucketGoesOn(end, early, late)
	}
	r.names(c, to, kept, end)
	w.bucketReflects(before)
	w.startsAgain(r, cfg)
}

// startsAgain fails unless a restart finds nothing to do.
func (w *world) startsAgain(r *running, cfg bridge.Config) {
	w.t.Helper()
	must[any](w.t)(nil, r.stop())
	stream, bucket := w.lastSequence(), w.streamState(subjects.BucketStream(cfg.Bucket)).LastSeq
	r = w.start(cfg)
	if got := r.metric("appbridge_lost_sequences_total"); got != 0 {
		w.t.Errorf("a restart finds a loss of %v", got)
	}
	must[any](w.t)(nil, r.stop())
	if now := w.lastSequence(); now != stream {
		w.t.Errorf("a restart appended %v", w.messages(subjects.DefaultStream)[now])
	}
	if now := w.streamState(subjects.BucketStream(cfg.Bucket)).LastSeq; now != bucket {
		w.t.Errorf("a restart wrote the bucket up to %d, it was at %d", now, bucket)
	}
}

// healed waits until the bridge is ready, and fails if it is so over a stream or a bucket's stream
// that ends before what it had acknowledged.
func (r *running) healed(c lossCase, stream, bucket uint64) {
	r.t.Helper()
	eventually(r.t, "the bridge is ready after a loss", func() error {
		select {
		case err := <-r.done:
			r.done <- err
			return fmt.Errorf("it ended: %w", errors.Join(errFatal, err))
		default:
		}
		if err := r.bridge.Ready(); err != nil || c.unnoticed {
			return err
		}
		js := must[jetstream.JetStream](r.t)(jetstream.New(r.nc))
		for name, want := range map[string]uint64{subjects.DefaultStream: stream, subjects.BucketStream(subjects.DefaultBucket): bucket} {
			now := must[jetstream.Stream](r.t)(js.Stream(r.t.Context(), name)).CachedInfo().State.LastSeq
			if now < want {
				r.t.Errorf("ready while %s ends at %d, it had acknowledged %d", name, now, want)
			}
		}
		return nil
	})
}

// names fails unless logs and metric name just what was lost.
func (r *running) names(c lossCase, to, kept, end uint64) {
	r.t.Helper()
	for _, l := range []struct {
		lost          bool
		storage, text string
		field, of     string
		from, last    uint64
	}{
		{c.stream, "stream", "the stream lost acknowledged events", "stream", subjects.DefaultStream, 5, to},
		{c.bucket && !c.unnoticed, "bucket", "the bucket lost acknowledged entries", "bucket", subjects.DefaultBucket, kept + 1, end},
	} {
		want, wantLogs := 0.0, 0
		if l.lost {
			want, wantLogs = float64(l.last-l.from+1), 1
		}
		if got := r.metricOf("appbridge_lost_sequences_total", "storage", l.storage); got != want {
			r.t.Errorf("the metric counts %v lost sequences of the %s, want %v", got, l.storage, want)
		}
		said := r.logs.FilterMessage(l.text)
		if said.Len() != wantLogs {
			r.t.Errorf("it logged %d times that %s, want %d", said.Len(), l.text, wantLogs)
		}
		if l.lost && said.FilterField(zap.String(l.field, l.of)).FilterField(zap.Uint64("from", l.from)).FilterField(zap.Uint64("to", l.last)).Len() != 1 {
			r.t.Errorf("it logged %v, want %d to %d of %s", said.All(), l.from, l.last, l.of)
		}
	}
}

// filled fails unless the lost range is empty, one notice names it, no filler is left, and what
// survived is as it was.
func (w *world) filled(lost subjects.LostRange, before map[uint64]*jetstream.RawStreamMsg) {
	t := w.t
	t.Helper()
	names := must[subjects.Subjects](t)(subjects.New(subjects.DefaultPrefix))
	after, notices := w.messages(subjects.DefaultStream), 0
	for seq, msg := range after {
		switch {
		case names.IsLost(msg.Subject):
			t.Errorf("sequence %d is still a filler", seq)
		case lost.Contains(seq):
			t.Errorf("sequence %d, which was lost, is %s", seq, msg.Subject)
		case seq < lost.From && (before[seq] == nil || !sameMessage(before[seq], msg)):
			t.Errorf("sequence %d is not what it was", seq)
		case names.IsNotice(msg.Subject):
			notices++
			got, err := subjects.ParseNotice(msg.Header.Get(subjects.HeaderLostFrom), msg.Header.Get(subjects.HeaderLostTo))
			if err != nil || got != lost {
				t.Errorf("the notice at %d names %v, %v, want %v", seq, got, err, lost)
			}
			if len(msg.Data) != 0 {
				t.Errorf("the notice has the body %q", msg.Data)
			}
		}
	}
	if notices != 1 {
		t.Errorf("%d notices, want one", notices)
	}
	for seq := range before {
		if seq < lost.From && after[seq] == nil {
			t.Errorf("sequence %d is gone", seq)
		}
	}
	info := must[*jetstream.StreamInfo](t)(must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.DefaultStream)).Info(t.Context(), jetstream.WithSubjectFilter(">")))
	if info.State.Msgs != uint64(len(after)) {
		t.Errorf("the stream counts %d messages and has %d", info.State.Msgs, len(after))
	}
	if n := info.State.Subjects[names.Lost()]; n != 0 {
		t.Errorf("the stream counts %d fillers", n)
	}
	for _, key := range []string{subjects.MetadataLostRanges, subjects.MetadataLostPending} {
		if value := info.Config.Metadata[key]; value != "" {
			t.Errorf("the stream's metadata have %s %q, want the notice alone", key, value)
		}
	}
}

// bucketGoesOn fails if a sequence of the bucket's stream up to end stands for something else than
// it did.
func (w *world) bucketGoesOn(end uint64, before ...map[uint64]*jetstream.RawStreamMsg) {
	w.t.Helper()
	for seq, msg := range w.messages(subjects.BucketStream(subjects.DefaultBucket)) {
		if seq > end {
			continue
		}
		if !slices.ContainsFunc(before, func(was map[uint64]*jetstream.RawStreamMsg) bool {
			return was[seq] != nil && sameMessage(was[seq], msg)
		}) {
			w.t.Errorf("sequence %d of the bucket's stream, which ended at %d, is now %s", seq, end, msg.Subject)
		}
	}
}

// bucketReflects fails unless each entry reflects the last event that the stream has of its app,
// or the last one that it had.
func (w *world) bucketReflects(before map[uint64]*jetstream.RawStreamMsg) {
	t := w.t
	t.Helper()
	names := must[subjects.Subjects](t)(subjects.New(subjects.DefaultPrefix))
	last := map[subjects.AppID]uint64{}
	for _, messages := range []map[uint64]*jetstream.RawStreamMsg{before, w.messages(subjects.DefaultStream)} {
		now := map[subjects.AppID]uint64{}
		for seq, msg := range messages {
			if id, _, err := names.ParseEvent(msg.Subject); err == nil {
				now[id] = max(now[id], seq)
			}
		}
		for id, seq := range now {
			last[id] = seq
		}
	}
	eventually(t, "each entry reflects its app's last event", func() error {
		for id, entry := range w.entries() {
			if got, want := entry.Header.Get(subjects.HeaderEventSequence), strconv.FormatUint(last[id], 10); got != want {
				return fmt.Errorf("the entry of %s reflects %s, its last event is %s", id, got, want)
			}
		}
		return nil
	})
}

// manyApps makes n apps, some at a time.
func (w *world) manyApps(n int) []*servingv1.Service {
	w.t.Helper()
	made := make([]*servingv1.Service, n)
	g := errgroup.Group{}
	g.SetLimit(16)
	for i := range made {
		g.Go(func() (err error) {
			made[i], err = w.Create(w.t.Context(), w.app(fmt.Sprintf("app-%03d", i)))
			return err
		})
	}
	must[any](w.t)(nil, g.Wait())
	return made
}

// changeAll changes all apps, some at a time, and deletes those that gone names.
func (w *world) changeAll(apps []*servingv1.Service, text string, gone func(i int) bool) error {
	g := errgroup.Group{}
	g.SetLimit(16)
	for i, svc := range apps {
		g.Go(func() error {
			if gone(i) {
				return w.Client.Delete(w.t.Context(), svc)
			}
			_, err := w.Failed(w.t.Context(), svc, "Broken", text)
			return err
		})
	}
	return g.Wait()
}

func none(int) bool { return false }

// An operator purges the stream while changes flow, again and again.
func TestPurgeUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	apps := w.manyApps(60)
	r := w.start(w.config())
	readers := w.readers()
	w.caughtUp(60, readers[0])
	stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.DefaultStream))
	purges := 0
	for round := range 3 {
		done := make(chan error, 1)
		go func() {
			done <- w.changeAll(apps, fmt.Sprint("round ", round), func(i int) bool { return round == 2 && i%10 == 9 })
		}()
		busy := true
		for at := w.lastSequence(); busy; {
			select {
			case err := <-done:
				must[any](t)(nil, err)
				busy = false
			default:
			}
			if now := w.lastSequence(); now >= at+10 {
				must[any](t)(nil, stream.Purge(t.Context()))
				purges, at = purges+1, now
			}
		}
	}
	w.bucketIsCluster(readers[0])
	r.waitReady()
	w.create(w.app("new"))
	var left []*servingv1.Service
	for i, svc := range apps {
		if i%10 != 9 {
			left = append(left, svc)
		}
	}
	must[any](t)(nil, w.changeAll(left, "at last", none))
	w.bucketIsCluster(readers[0])
	r.waitReady()
	for _, reader := range readers {
		reader.reaches()
	}
	t.Logf("%d purges took %v sequences from the projection; %v resyncs", purges,
		r.metric("appbridge_removed_sequences_total"), r.metric("appbridge_resyncs_total"))
	w.startsAgain(r, w.config())
}
