package appwatch

import (
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// store is a stream and a bucket for tests of one step of a reader.
type store struct {
	t  *testing.T
	nc *nats.Conn
	js jetstream.JetStream
}

func newStore(t *testing.T) *store {
	t.Helper()
	nc, err := nats.Connect(suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL(), nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	s := &store{t, nc, js}
	for _, cfg := range []jetstream.StreamConfig{
		{Name: subjects.DefaultStream, Subjects: []string{subjects.DefaultPrefix + ".events.>"}, Metadata: map[string]string{subjects.MetadataStreamID: "one"}},
		{Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{subjects.BucketFilter(subjects.DefaultBucket)}, MaxMsgsPerSubject: 1, AllowRollup: true},
	} {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *store) publish(subject string, h nats.Header) {
	s.t.Helper()
	if _, err := s.js.PublishMsg(s.t.Context(), &nats.Msg{Subject: subject, Header: h}); err != nil {
		s.t.Fatal(err)
	}
}

// event appends an event of the app "shop.production.<name>".
func (s *store) event(name string, kind subjects.EventKind, previous uint64) {
	s.t.Helper()
	h := nats.Header{subjects.CEType: {kind.Type()}, subjects.CEID: {nats.NewInbox()}}
	if previous > 0 {
		h.Set(subjects.HeaderPreviousSequence, strconv.FormatUint(previous, 10))
	}
	s.publish(subjects.DefaultPrefix+".events.shop.production."+name+"."+string(kind), h)
}

// entry writes the entry of an app.
func (s *store) entry(name string, kind subjects.EventKind, sequence uint64) {
	s.t.Helper()
	h := nats.Header{subjects.CEType: {kind.Type()}, subjects.HeaderEventSequence: {strconv.FormatUint(sequence, 10)}}
	if kind == subjects.Deleted {
		h.Set(subjects.HeaderKVOperation, subjects.KVDelete)
	}
	s.publish(subjects.BucketSubject(subjects.DefaultBucket, "shop.production."+name), h)
}

func (s *store) stream() jetstream.Stream {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), subjects.DefaultStream)
	if err != nil {
		s.t.Fatal(err)
	}
	return stream
}

// begun is a reader that has begun, and what it has yielded since.
func (s *store) begun(opts Options) (*watcher, *[]Item) {
	s.t.Helper()
	p, err := opts.validate()
	if err != nil {
		s.t.Fatal(err)
	}
	items := &[]Item{}
	w := newWatcher(s.js, p, func(it *Item) bool {
		*items = append(*items, *it)
		return true
	})
	s.t.Cleanup(w.api.Close)
	if err := w.look(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if err := w.begin(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	*items = (*items)[:0]
	return w, items
}

// read has a reader read the messages that the stream has from a sequence on.
func (s *store) read(w *watcher, from uint64) {
	s.t.Helper()
	for sequence := from; sequence <= s.stream().CachedInfo().State.LastSeq; sequence++ {
		m, err := s.stream().GetMsg(s.t.Context(), sequence)
		if err != nil {
			s.t.Fatal(err)
		}
		d := jetapi.Delivery{Sequence: sequence, Stored: m.Time.UnixNano()}
		if err := w.message(s.t.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header}, d); err != nil {
			s.t.Fatal(err)
		}
	}
}

// remembers has a reader remember the events of the stream up to same, and then others up to last.
func (s *store) remembers(w *watcher, same, last uint64) {
	s.t.Helper()
	for sequence := uint64(1); sequence <= last; sequence++ {
		check := uint32(1)
		if sequence <= same {
			m, err := s.stream().GetMsg(s.t.Context(), sequence)
			if err != nil {
				s.t.Fatal(err)
			}
			check = checkOf(m.Header.Get(subjects.CEID))
		}
		w.ledger.remember(sequence, check)
	}
}
