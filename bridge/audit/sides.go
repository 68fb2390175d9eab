package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// sides is what cluster, stream and bucket contained when they were read.
type sides struct {
	current map[subjects.AppID]app.State
	pending map[subjects.AppID]bool // the apps whose Revision is not in the lists, or whose pods recover
	version string                  // of the list of Knative Services
	skipped []Note

	storage *store.Storage // nil infos: missing
	// blocked are differences that make the content of stream or bucket meaningless.
	blocked []Difference

	events  map[subjects.AppID]*plan.Event
	foreign []Note

	entries map[subjects.AppID]*plan.Entry
	// keys are the subjects of the bucket that are no app's key, with their last sequence.
	keys map[string]uint64

	// bridge is what a running bridge has of each app that it compares; nil: no bridge compares.
	bridge map[subjects.AppID]plan.Bridge
}

// Target is the stream and the bucket that are compared, and how a bridge would write them.
type Target struct {
	JetStream jetstream.JetStream
	Subjects  subjects.Subjects
	// ClusterName, Stream and Bucket are the names in the configuration.
	ClusterName, Stream, Bucket string
	// Watched reports whether a namespace is watched.
	Watched func(namespace string) bool
	// Connected returns why JetStream cannot be read at present.
	Connected func() error
	// Storage returns stream and bucket, not read yet.
	Storage func() *store.Storage
	// Entries makes and purges entries as the projector does.
	Entries *store.Bucket
	// Shape has the options that decide how an App looks; nil: the stream's are not compared.
	Shape store.Shape
	// Encoder makes the events for a stream that takes messages of maxSize bytes, if that is not 0.
	Encoder func(maxSize int64) *app.Encoder
}

func (t *Target) reader() store.Reader { return store.NewReader(t.JetStream, t.Stream, t.Subjects) }

func (t *Target) newSides() *sides {
	return &sides{
		storage: t.Storage(), current: map[subjects.AppID]app.State{},
		events: map[subjects.AppID]*plan.Event{}, entries: map[subjects.AppID]*plan.Entry{}, keys: map[string]uint64{},
	}
}

// selection is what a comparison is confined to.
type selection struct {
	apps map[subjects.AppID]struct{}
	keys map[string]struct{} // subjects
}

func (t *Target) readNATS(ctx context.Context, s *sides, only *selection) error {
	if err := t.Connected(); err != nil {
		return err
	}
	if err := t.inspect(ctx, s); err != nil || len(s.blocked) > 0 {
		return err
	}
	if s.storage.Bucket != nil {
		if err := t.readBucket(ctx, s, only); err != nil {
			return err
		}
	}
	if s.storage.Stream == nil {
		return nil
	}
	// Again: what the bucket reflects is in the stream by now.
	if err := s.storage.ReadStream(ctx); err != nil {
		return err
	}
	return t.readStream(ctx, s, only)
}

func (t *Target) inspect(ctx context.Context, s *sides) error {
	st := s.storage
	if err := st.LookUp(ctx); err != nil {
		return err
	}
	var unfit *app.ConfigError
	for _, i := range []struct {
		side    plan.Side
		name    string
		info    *jetstream.StreamInfo
		inspect func() error
	}{{plan.SideStream, t.Stream, st.Stream, st.InspectStream}, {plan.SideBucket, t.Bucket, st.Bucket, st.InspectBucket}} {
		if i.info == nil {
			continue
		}
		if err := st.CheckCluster(string(i.side), i.name, i.info.Config); err != nil {
			s.blocked = append(s.blocked, whole(DifferenceOtherCluster, i.side, "%v", err))
		} else if err := i.inspect(); errors.As(err, &unfit) {
			s.blocked = append(s.blocked, whole(DifferenceUnfit, i.side, "%v", unfit))
		} else if err != nil {
			return err
		}
	}
	if err := st.CheckIdentity(st.Stream, st.Bucket); errors.As(err, &unfit) {
		s.blocked = append(s.blocked, whole(DifferenceUnfit, plan.SideBucket, "%v", unfit))
	}
	if st.Stream != nil {
		if len(s.blocked) > 0 || t.Shape == nil {
			return nil
		}
		if err := t.Shape.Compare(st.Stream); err != nil {
			s.blocked = append(s.blocked, whole(DifferenceOtherShape, plan.SideStream, "%v", err))
		}
		return nil
	}
	other, err := st.Holder(ctx)
	if err == nil && other != "" {
		s.blocked = append(s.blocked, whole(DifferenceUnfit, plan.SideStream, "stream %s holds %s, want stream %s", other, t.Subjects.Events(), t.Stream))
	}
	return err
}

// readBucket reads the last message of every key.
func (t *Target) readBucket(ctx context.Context, s *sides, only *selection) error {
	stream := subjects.BucketStream(t.Bucket)
	var names []string
	var err error
	if only == nil {
		// Everything in the bucket's stream, also what is no key.
		if names, err = store.Subjects(ctx, t.JetStream, stream, store.AllMessages); err != nil {
			return err
		}
	} else {
		names = slices.Collect(maps.Keys(only.keys))
		for id := range only.apps {
			name, err := t.Entries.Subject(id)
			if err != nil {
				return err
			}
			names = append(names, name)
		}
	}
	return t.readLast(ctx, stream, names, func(subject string, m *store.Message) {
		id, err := t.Entries.AppOf(subject)
		if err != nil {
			s.keys[subject] = m.Sequence
			return
		}
		s.entries[id] = store.EntryOf(m)
	})
}

// readStream reads the last message of every app, and of the subjects that are no app's.
func (t *Target) readStream(ctx context.Context, s *sides, only *selection) error {
	apps := map[subjects.AppID]struct{}{}
	if only != nil {
		apps = only.apps
	} else {
		names, err := store.Subjects(ctx, t.JetStream, t.Stream, t.Subjects.Events())
		if err != nil {
			return err
		}
		var strange []string
		for _, subject := range names {
			if id, _, err := t.Subjects.ParseEvent(subject); err == nil {
				apps[id] = struct{}{}
			} else if !t.Subjects.IsLost(subject) && !t.Subjects.IsNotice(subject) {
				strange = append(strange, subject)
			}
		}
		if err := t.readLast(ctx, t.Stream, strange, func(subject string, m *store.Message) {
			s.foreign = append(s.foreign, Note{
				Kind: NoteForeignMessage,
				Detail: fmt.Sprintf("the stream holds a message that is no app event, it is passed over: sequence %d, subject %s",
					m.Sequence, store.Printable(subject)),
			})
		}); err != nil {
			return err
		}
	}
	if err := t.readEvents(ctx, s, apps); err != nil {
		return err
	}
	slices.SortFunc(s.foreign, compareNotes)
	return t.readDoubtful(ctx, s)
}

func (t *Target) readEvents(ctx context.Context, s *sides, apps map[subjects.AppID]struct{}) error {
	return store.ReadEach(ctx, maps.Keys(apps), func(ctx context.Context, id subjects.AppID) (*plan.Event, error) {
		return t.reader().LastEvent(ctx, id, s.entries[id].Sequence())
	}, func(id subjects.AppID, e *plan.Event) {
		if e == nil {
			return
		}
		s.events[id] = e
		if e.Foreign > 0 {
			s.foreign = append(s.foreign, noteOn(id, NoteForeignMessage,
				"its last message in the stream is no event of appbridge, it is passed over: sequence %d", e.Foreign))
		}
	})
}

// readDoubtful reads what the stream has where an entry does not reflect its app's last event.
func (t *Target) readDoubtful(ctx context.Context, s *sides) error {
	doubtful := maps.Clone(s.entries)
	maps.DeleteFunc(doubtful, func(id subjects.AppID, h *plan.Entry) bool {
		return h.Record == nil || s.events[id].Sequence() == h.Record.Sequence
	})
	// One that does not exist was removed by retention, or the entry is ahead.
	return store.ReadEach(ctx, maps.Keys(doubtful), func(ctx context.Context, id subjects.AppID) (*store.Message, error) {
		return store.MessageAt(ctx, t.JetStream, t.Stream, doubtful[id].Record.Sequence)
	}, func(id subjects.AppID, m *store.Message) {
		h := doubtful[id]
		of, _, err := t.Subjects.ParseEvent(m.Subject)
		if err != nil || of != id || m.Header.Get(subjects.CEID) != h.Header.Get(subjects.CEID) {
			h.Other = fmt.Sprintf("%q on %s", m.Header.Get(subjects.CEID), store.Printable(m.Subject))
		}
	})
}

// readLast reads the last message of each subject and calls visit with it, one at a time.
func (t *Target) readLast(ctx context.Context, stream string, names []string, visit func(string, *store.Message)) error {
	return store.ReadEach(ctx, slices.Values(names), func(ctx context.Context, subject string) (*store.Message, error) {
		return store.LastMessage(ctx, t.JetStream, stream, subject)
	}, visit)
}
