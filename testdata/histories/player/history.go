package player

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// Reader is the consumer that a history is played to.
type Reader interface {
	// Kill ends the reader's process at once. It may be called without one.
	Kill()
	// Start starts the next process, from the position that the consumer has. There must be none.
	Start() error
	// Forget has the consumer forget all, so that the next process begins with a snapshot.
	Forget()
	// Reachable reports that the server can be reached again, after what.
	Reachable(cause string)
	// CaughtUp waits until the reader has delivered what the stream holds.
	CaughtUp(ctx context.Context) error
}

// View is what a reader reads.
type View int

// The views.
const (
	Origin      View = iota // the bridge's own stream and bucket
	Mirror                  // mirrors of both, with other names
	Transformed             // a stream with other subjects and sequences, and the bridge's bucket
)

func (v View) String() string { return [...]string{"origin", "mirror", "transformed"}[v] }

// Names are what a reader of a view is given.
type Names struct {
	URL, Prefix, Stream, Bucket string
	BucketStream                string // empty: that of the bucket
}

// History is one random history. It is not safe for use by several goroutines.
type History struct {
	Model *model.Model
	View  View
	Steps []string  // what was done, oldest first
	Trace io.Writer // of the steps; nil: none

	rand   *rand.Rand
	writer *writer
	reader Reader
	saved  []*saved
	lag    int  // how often the bucket is projected: 0 at once, else once in lag steps
	broken bool // a rollback is not healed yet
	cut    bool
	runs   bool // the reader
	copies int
}

// New makes the stream and the bucket of a history in a folder. Close ends it.
func New(ctx context.Context, seed uint64, dir string) (*History, error) {
	r := rand.New(rand.NewPCG(seed, seed))
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return nil, err
	}
	h := &History{Model: &model.Model{}, rand: r}
	switch r.IntN(20) {
	case 0:
		h.View = Mirror
	case 1:
		h.View = Transformed
	}
	b, err := newBox(dir)
	if err != nil {
		return nil, err
	}
	w := &writer{
		box: b, names: names, model: h.Model, cluster: newCluster(r), form: subjects.ContentTypeJSON,
		streamID: fmt.Sprintf("history-%d", seed), published: map[subjects.AppID]record{},
		headers: map[uint64]header{}, records: map[uint64]record{}, bucket: bucket{entries: map[subjects.AppID]entry{}},
	}
	h.writer = w
	h.lag = []int{0, 0, 3, 10}[r.IntN(4)]
	if err = w.createStream(ctx); err == nil {
		err = w.createBucket(ctx)
	}
	if err == nil {
		err = h.views(ctx)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("begin a history: %w", err)
	}
	return h, nil
}

const (
	mirrorStream, mirrorBucket = "MIRROR_OF_APPS", "MIRROR_OF_STATE"
	farPrefix, farStream       = "far.apps", "FAR_APPS"
)

// views makes the streams of another cluster, which copy those of the bridge.
func (h *History) views(ctx context.Context) (err error) {
	js := h.writer.box.js
	switch h.View {
	case Mirror:
		for name, of := range map[string]string{mirrorStream: stream, mirrorBucket: bucketStream} {
			cfg := jetstream.StreamConfig{Name: name, Storage: jetstream.FileStorage, Mirror: &jetstream.StreamSource{Name: of}, AllowDirect: true}
			if of == bucketStream {
				cfg.MaxMsgsPerSubject, cfg.AllowRollup, cfg.DenyDelete = 1, true, true
			}
			if _, err = js.CreateStream(ctx, cfg); err != nil {
				return err
			}
		}
	case Transformed:
		far, err := subjects.New(farPrefix)
		if err != nil {
			return err
		}
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: farStream, Storage: jetstream.FileStorage, Sources: []*jetstream.StreamSource{{
			Name: stream, SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: h.writer.names.Events(), Destination: far.Events()}},
		}}})
		return err
	}
	return nil
}

// Names are what a reader is given.
func (h *History) Names() Names {
	n := Names{URL: h.writer.box.gate.url(), Prefix: subjects.DefaultPrefix, Stream: stream, Bucket: subjects.DefaultBucket}
	switch h.View {
	case Mirror:
		n.Stream, n.BucketStream = mirrorStream, mirrorBucket
	case Transformed:
		n.Prefix, n.Stream = farPrefix, farStream
	}
	return n
}

// Apps are the ids of the history's apps.
func (h *History) Apps() []subjects.AppID { return h.writer.cluster.ids }

// States is the event of each entry and marker of the bucket.
func (h *History) States() map[subjects.AppID]*model.Message {
	states := map[subjects.AppID]*model.Message{}
	for id, e := range h.writer.bucket.entries {
		states[id] = e.event
	}
	return states
}

// Close stops the server and removes its storage.
func (h *History) Close() error {
	h.writer.box.close()
	return os.RemoveAll(h.writer.box.dir)
}

// Play plays the history to a reader, until the bucket shows all that the stream has and the reader
// can reach both.
func (h *History) Play(ctx context.Context, reader Reader) error {
	h.reader = reader
	steps := 20 + h.rand.IntN(60)
	for range steps {
		s := h.next()
		if err := h.do(ctx, s); err != nil {
			return err
		}
	}
	for _, s := range []step{{"heal", (*History).heal}, {"open", (*History).open}, {"change", (*History).change}} {
		if err := h.do(ctx, s); err != nil {
			return err
		}
	}
	if err := h.writer.project(ctx, -1); err != nil {
		return err
	}
	if h.rand.IntN(2) == 0 {
		if err := h.do(ctx, step{"remove what is unread", (*History).unread}); err != nil {
			return err
		}
	}
	if !h.runs {
		return h.start(ctx)
	}
	return nil
}

func (h *History) do(ctx context.Context, s step) error {
	h.Steps = append(h.Steps, s.name)
	if h.Trace != nil {
		_, _ = fmt.Fprintf(h.Trace, "step %s, the stream ends at %d, the bucket at %d\n", s.name, h.writer.last, h.writer.bucket.projected)
	}
	if err := s.do(h, ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = errors.Join(err, h.writer.box.silent())
		}
		return fmt.Errorf("step %d, %s: %w", len(h.Steps), s.name, err)
	}
	if h.broken || h.lag > 0 && h.rand.IntN(h.lag) > 0 {
		return nil
	}
	n := -1
	if h.lag > 0 && h.rand.IntN(2) == 0 {
		n = 1 + h.rand.IntN(5)
	}
	return h.writer.project(ctx, n)
}

// copyName is a folder for the next copy of the storage.
func (h *History) copyName() string {
	h.copies++
	return filepath.Join("copies", fmt.Sprint(h.copies))
}
