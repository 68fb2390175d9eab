package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
)

// sides is what cluster, stream and bucket showed at one look.
type sides struct {
	current map[subjects.AppID]state
	awaits  map[subjects.AppID]*awaited // the apps whose Revision the lists did not show
	version string                      // of the list of Knative Services
	leftOut []Note

	storage *storage // nil infos: missing
	// blocked are differences that make the content of stream or bucket
	// meaningless: they belong to something else.
	blocked []Difference

	events  map[subjects.AppID]*lastEvent
	foreign []Note

	entries map[subjects.AppID]*held
	// keys are the subjects of the bucket that are no app's key, with their
	// newest sequence.
	keys map[string]uint64

	// believed is what a running bridge knows that it published last of each app that it looks at; nil
	// of an app that it never published. A nil map: no bridge looks.
	believed map[subjects.AppID]*record
}

// looker reads and judges what stream and bucket hold. Verify and the audit are both made of it; they
// differ in where the cluster's side comes from.
type looker struct {
	*Bridge
	watched func(namespace string) bool
}

// selection is what a look is confined to.
type selection struct {
	apps map[subjects.AppID]struct{}
	keys map[string]struct{} // subjects
}

// look reads all three sides and changes nothing. A selection confines what is
// read of stream and bucket. The bucket comes first and the cluster last: what
// happens meanwhile makes later sides newer, never older.
func (v *verifier) look(ctx context.Context, only *selection) (*sides, error) {
	var s *sides
	if err := v.until(ctx, "NATS", func(ctx context.Context) error {
		s = &sides{
			storage: v.newStorage(),
			events:  map[subjects.AppID]*lastEvent{}, entries: map[subjects.AppID]*held{}, keys: map[string]uint64{},
		}
		return v.readNATS(ctx, s, only)
	}); err != nil {
		return nil, err
	}
	if len(s.blocked) > 0 {
		return s, nil
	}
	if err := v.until(ctx, "Kubernetes", func(ctx context.Context) error { return v.readCluster(ctx, s) }); err != nil {
		return nil, err
	}
	if only != nil {
		maps.DeleteFunc(s.current, func(id subjects.AppID, _ state) bool {
			_, selected := only.apps[id]
			return !selected
		})
	}
	return s, nil
}

func (v *looker) readNATS(ctx context.Context, s *sides, only *selection) error {
	if err := v.checkConnection(); err != nil {
		return err
	}
	if err := v.inspect(ctx, s); err != nil || len(s.blocked) > 0 {
		return err
	}
	if s.storage.bucket != nil {
		if err := v.readBucket(ctx, s, only); err != nil {
			return err
		}
	}
	if s.storage.stream == nil {
		return nil
	}
	// Looked up anew: what the bucket reflects is in the stream by now.
	stream, err := s.storage.info(ctx, v.cfg.Stream)
	if err != nil {
		return err
	}
	if stream == nil {
		return fmt.Errorf("stream %s is gone", v.cfg.Stream)
	}
	s.storage.stream = stream
	return v.readStream(ctx, s, only)
}

// inspect looks at stream and bucket as a whole.
func (v *looker) inspect(ctx context.Context, s *sides) error {
	st := s.storage
	if err := st.lookUp(ctx); err != nil {
		return err
	}
	block := func(side Side, err error) error {
		var config *ConfigError
		if !errors.As(err, &config) {
			return err
		}
		s.blocked = append(s.blocked, Difference{Kind: DifferenceUnfit, Side: side, Detail: config.Error()})
		return nil
	}
	inspections := []struct {
		side    Side
		name    string
		info    *jetstream.StreamInfo
		inspect func() error
	}{{SideStream, v.cfg.Stream, st.stream, st.inspectStream}, {SideBucket, v.cfg.Bucket, st.bucket, st.inspectBucket}}
	for _, i := range inspections {
		if i.info == nil {
			continue
		}
		if err := st.checkCluster(string(i.side), i.name, i.info.Config); err != nil {
			s.blocked = append(s.blocked, Difference{Kind: DifferenceOtherCluster, Side: i.side, Detail: err.Error()})
			continue
		}
		if err := block(i.side, i.inspect()); err != nil {
			return err
		}
	}
	if st.stream != nil {
		return nil
	}
	other, err := st.holder(ctx)
	if err == nil && other != "" {
		s.blocked = append(s.blocked, Difference{
			Kind: DifferenceUnfit, Side: SideStream,
			Detail: fmt.Sprintf("stream %s holds %s, want stream %s", other, v.subjects.Events(), v.cfg.Stream),
		})
	}
	return err
}

// readBucket reads the newest message of every key.
func (v *looker) readBucket(ctx context.Context, s *sides, only *selection) error {
	stream := subjects.BucketStream(v.cfg.Bucket)
	var names []string
	var err error
	if only == nil {
		// Whatever the bucket's stream holds, also what is no key.
		if names, err = subjectsOf(ctx, v.js, stream, ">"); err != nil {
			return err
		}
	} else {
		for id := range only.apps {
			name, err := v.entries().subject(id)
			if err != nil {
				return err
			}
			names = append(names, name)
		}
		for subject := range only.keys {
			names = append(names, subject)
		}
	}
	return v.readLast(ctx, stream, names, func(subject string, m *storedMessage) {
		id, err := v.parseEntry(subject)
		if err != nil {
			s.keys[subject] = m.sequence
			return
		}
		s.entries[id] = heldBy(m)
	})
}

// parseEntry is the app whose key a subject of the bucket is.
func (v *looker) parseEntry(subject string) (subjects.AppID, error) {
	key, err := subjects.ParseBucketSubject(v.cfg.Bucket, subject)
	if err != nil {
		return subjects.AppID{}, err
	}
	return subjects.ParseKey(key)
}

// readStream reads the last message of every app, and of the subjects that are
// no app's.
func (v *looker) readStream(ctx context.Context, s *sides, only *selection) error {
	apps := map[subjects.AppID]struct{}{}
	if only != nil {
		apps = only.apps
	} else {
		names, err := subjectsOf(ctx, v.js, v.cfg.Stream, v.subjects.Events())
		if err != nil {
			return err
		}
		var strange []string
		for _, subject := range names {
			if id, _, err := v.subjects.ParseEvent(subject); err == nil {
				apps[id] = struct{}{}
			} else if !v.subjects.IsLost(subject) && !v.subjects.IsNotice(subject) {
				strange = append(strange, subject)
			}
		}
		if err := v.readLast(ctx, v.cfg.Stream, strange, func(subject string, m *storedMessage) {
			s.foreign = append(s.foreign, Note{
				Kind: NoteForeignMessage,
				Detail: fmt.Sprintf("the stream holds a message that is no app event, it is passed over: sequence %d, subject %s",
					m.sequence, printable(subject)),
			})
		}); err != nil {
			return err
		}
	}
	if err := v.readEvents(ctx, s, apps); err != nil {
		return err
	}
	slices.SortFunc(s.foreign, func(a, b Note) int { return strings.Compare(a.Key+a.Detail, b.Key+b.Detail) })
	return v.readDoubtful(ctx, s)
}

func (v *looker) readEvents(ctx context.Context, s *sides, apps map[subjects.AppID]struct{}) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	for id := range apps {
		g.Go(func() error {
			e, err := v.reader().lastEventOf(ctx, id, s.entries[id].sequence())
			if err != nil || e == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			s.events[id] = e
			if e.foreign > 0 {
				s.foreign = append(s.foreign, noteOn(id, NoteForeignMessage,
					"its last message in the stream is no event of appbridge, it is passed over: sequence %d", e.foreign))
			}
			return nil
		})
	}
	return g.Wait()
}

// readDoubtful looks at what the stream holds where an entry says that its
// event is, for the entries that are not their app's last event.
func (v *looker) readDoubtful(ctx context.Context, s *sides) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	for id, h := range s.entries {
		if e := s.events[id]; h.record == nil || (e != nil && e.record.previous() == h.record.sequence) {
			continue
		}
		g.Go(func() error {
			m, err := messageAt(ctx, v.nc, v.cfg.Stream, h.record.sequence)
			if errors.Is(err, errNoMessage) {
				return nil // retention took it, or it is ahead
			}
			if err != nil {
				return err
			}
			of, _, err := v.subjects.ParseEvent(m.subject)
			if err != nil || of != id || m.header.Get(subjects.CEID) != h.header.Get(subjects.CEID) {
				h.other = fmt.Sprintf("%q on %s", m.header.Get(subjects.CEID), printable(m.subject))
			}
			return nil
		})
	}
	return g.Wait()
}

// readLast reads the last message of each subject and hands it to visit, one
// at a time.
func (v *looker) readLast(ctx context.Context, stream string, names []string, visit func(string, *storedMessage)) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	for _, subject := range names {
		g.Go(func() error {
			m, err := lastMessage(ctx, v.nc, stream, subject)
			if errors.Is(err, errNoMessage) {
				return nil // removed meanwhile
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			visit(subject, m)
			return nil
		})
	}
	return g.Wait()
}
