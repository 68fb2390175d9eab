package audit

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// Expected is what the messages of one app have to contain, as the bridge believes.
type Expected struct {
	Key     string // of the bucket
	Pending bool   // a change of it is in progress
	Exists  bool   // its last event is no delete
	// Sequence is that of the app's last event, Fence that of its last message.
	Sequence, Fence uint64
	// Entry is its entry's sequence in the bucket's stream, Event what that reflects; 0: unknown.
	Entry, Event uint64
}

// Screen compares the headers of a stream's and its bucket's messages with each other and with what
// the bridge believes. It takes the stream's messages first, at least the last one of each subject,
// then the beliefs, then the bucket's messages. It keeps 24 bytes for each app.
//
// Messages behind the ends that it is given are not judged: they were written since.
type Screen struct {
	subjects subjects.Subjects
	bucket   string
	// first and end are the first and last sequence of the stream when the screen began.
	first, end uint64
	// needsNoMarker reports whether the bucket may lack the delete marker of an event stored then.
	needsNoMarker func(stored time.Time) bool

	seed   maphash.Seed
	rows   []row // of the stream; sorted up to sorted
	sorted int

	beliefs   []believed // sorted
	bucketEnd uint64     // last sequence of the bucket's stream when the beliefs were taken

	suspects  sample   // keys of apps
	foreign   sample   // subjects that are no app's key
	sequences []uint64 // of messages whose apps are suspects
}

// row is the newest message of an app in the stream.
type row struct {
	app      uint64 // hash of the key
	sequence uint64
	digest   uint32 // of the headers
	deleted  bool   // it is a deleted event
	noEvent  bool   // its headers are no event's
	aged     bool   // the bucket may lack the delete marker
	key      bool   // the bucket has a key of the app
}

type believed struct {
	Expected
	app uint64 // hash of the key
	key bool   // the bucket has it
}

// maxSuspects bounds the suspects of one screen. Of more it returns another choice each time: some
// may be suspect for ever and right.
const maxSuspects = 1000

// foreignSeed has each screen return the same choice of many foreign keys: they are only reported.
var foreignSeed = maphash.MakeSeed()

// NewScreen makes the Screen of a stream with the sequences from first to end, and of a bucket.
func NewScreen(s subjects.Subjects, bucket string, first, end uint64, needsNoMarker func(stored time.Time) bool) *Screen {
	return &Screen{
		subjects: s, bucket: bucket, first: first, end: end, needsNoMarker: needsNoMarker,
		seed: maphash.MakeSeed(), suspects: sample{}, foreign: sample{},
	}
}

// AddEvent takes a message of the stream.
func (s *Screen) AddEvent(m *store.Message) {
	id, kind, err := s.subjects.ParseEvent(m.Subject)
	if err != nil {
		return // a filler, a notice, or another message of no app
	}
	key, err := id.Key()
	if err != nil {
		return
	}
	deleted := kind == subjects.Deleted
	s.rows = append(s.rows, row{
		app: maphash.String(s.seed, key), sequence: m.Sequence, digest: s.digest(m.Header),
		deleted: deleted, noEvent: !isEvent(m.Header, kind), aged: deleted && s.needsNoMarker(m.Stored),
	})
	if len(s.rows) == cap(s.rows) && len(s.rows) > 2*s.sorted {
		s.compact()
	}
}

// isEvent reports whether the headers are those of an event of that kind.
func isEvent(h nats.Header, kind subjects.EventKind) bool {
	return h.Get(subjects.CEType) == kind.Type() && h.Get(subjects.HeaderUID) != "" && h.Get(subjects.HeaderResourceVersion) != ""
}

// compact keeps the newest row of each app.
func (s *Screen) compact() {
	slices.SortFunc(s.rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.app, b.app), cmp.Compare(b.sequence, a.sequence)) })
	s.rows = slices.CompactFunc(s.rows, func(a, b row) bool { return a.app == b.app })
	s.sorted = len(s.rows)
}

// digest hashes the headers that an event shares with its entry, whatever encoding that has.
func (s *Screen) digest(h nats.Header) uint32 {
	var sum uint64
	var hash maphash.Hash
	hash.SetSeed(s.seed)
	for name, values := range h {
		switch name {
		case subjects.HeaderEventSequence, subjects.HeaderTruncated, subjects.CEDataContentType:
			continue
		}
		if !app.Carried(name) {
			continue
		}
		hash.Reset()
		hash.WriteString(name)
		for _, v := range values {
			hash.WriteByte(0)
			hash.WriteString(v)
		}
		sum += hash.Sum64()
	}
	return uint32(sum ^ sum>>32)
}

// Believe compares the stream with what the bridge believes. bucketEnd is the last sequence of the
// bucket's stream when the beliefs were taken, or before.
func (s *Screen) Believe(beliefs []Expected, bucketEnd uint64) {
	s.compact()
	s.bucketEnd = bucketEnd
	s.beliefs = make([]believed, 0, len(beliefs))
	for _, b := range beliefs {
		s.beliefs = append(s.beliefs, believed{Expected: b, app: maphash.String(s.seed, b.Key)})
	}
	slices.SortFunc(s.beliefs, func(a, b believed) int { return cmp.Compare(a.app, b.app) })
	for _, r := range s.rows {
		b := find(s.beliefs, r.app)
		switch {
		case r.sequence > s.end: // written since
		case b == nil && !r.deleted: // the last event of an unknown app has to be a delete
			s.suspectAt(r.sequence)
		case b != nil && !b.Pending && b.Sequence <= s.end && r.sequence != b.Sequence && r.sequence != b.Fence:
			s.suspect(b.Key)
		}
	}
	for _, b := range s.beliefs {
		if !b.Pending && b.Exists && b.Sequence >= s.first && b.Sequence <= s.end && find(s.rows, b.app) == nil {
			s.suspect(b.Key)
		}
	}
}

func (r row) hash() uint64      { return r.app }
func (b believed) hash() uint64 { return b.app }

// find is what sorted rows or beliefs have of an app, nil if they have nothing.
func find[T interface{ hash() uint64 }](all []T, app uint64) *T {
	i, found := slices.BinarySearchFunc(all, app, func(v T, app uint64) int { return cmp.Compare(v.hash(), app) })
	if !found {
		return nil
	}
	return &all[i]
}

// AddEntry takes a message of the bucket's stream. Believe must have been called.
func (s *Screen) AddEntry(m *store.Message) {
	key, err := subjects.ParseBucketSubject(s.bucket, m.Subject)
	if err == nil {
		_, err = subjects.ParseKey(key)
	}
	if err != nil {
		s.foreign.add(m.Subject, foreignSeed)
		return
	}
	app := maphash.String(s.seed, key)
	r, b := find(s.rows, app), find(s.beliefs, app)
	if r != nil {
		r.key = true
	}
	if b != nil {
		b.key = true
	}
	if m.Sequence > s.bucketEnd {
		return // written since
	}
	if s.wrongEntry(m, r, b) {
		s.suspect(key)
	}
}

func (s *Screen) wrongEntry(m *store.Message, r *row, b *believed) bool {
	event, err := strconv.ParseUint(m.Header.Get(subjects.HeaderEventSequence), 10, 64)
	switch {
	case err != nil || m.Header.Get(subjects.HeaderUID) == "" || m.Header.Get(subjects.HeaderResourceVersion) == "":
		return true // damaged
	case event > s.end:
		// It was not written since: it is ahead of the stream's end, or the stream moves fast.
		return b == nil || !b.Pending && b.Event != event
	}
	marker := m.Header.Get(subjects.HeaderKVOperation) != ""
	switch {
	case b != nil && !b.Pending && (b.Entry > 0 && b.Entry != m.Sequence || b.Event > 0 && b.Event != event || b.Exists == marker):
		return true
	case r == nil && event >= s.first:
		return true // its event is gone, or never existed
	case r == nil:
		return b == nil && !marker // retention removed its event
	case r.sequence > s.end:
		return false
	case r.sequence == event && !r.noEvent:
		return r.digest != s.digest(m.Header) || marker != r.deleted
	case b != nil && !b.Pending:
		return b.Sequence != event // a later message of the app is no event
	default:
		return true
	}
}

// Suspects returns the keys and the foreign subjects of the bucket that may be wrong. of returns the
// key of the app whose message the stream has at a sequence, "" if there is none.
func (s *Screen) Suspects(of func(sequence uint64) (key string, err error)) ([]string, error) {
	for _, b := range s.beliefs {
		if !b.key && !b.Pending && b.Exists && b.Sequence <= s.end {
			s.suspect(b.Key)
		}
	}
	for _, r := range s.rows {
		if r.key || r.aged || r.sequence > s.end {
			continue
		}
		if b := find(s.beliefs, r.app); b == nil {
			s.suspectAt(r.sequence)
		} else if !b.Pending && b.Sequence <= s.end {
			s.suspect(b.Key)
		}
	}
	for _, sequence := range s.sequences {
		key, err := of(sequence)
		if err != nil {
			return nil, err
		}
		if key != "" {
			s.suspect(key)
		}
	}
	suspects := slices.Concat(s.suspects.take(s.seed), s.foreign.take(foreignSeed))
	slices.Sort(suspects)
	return suspects, nil
}

func (s *Screen) suspect(key string) { s.suspects.add(key, s.seed) }

// suspectAt is called in the order of the apps' hashes, which differs for each screen.
func (s *Screen) suspectAt(sequence uint64) {
	if len(s.sequences) < maxSuspects {
		s.sequences = append(s.sequences, sequence)
	}
}

// sample keeps some of the names that it is given: those with the lowest hashes.
type sample map[string]struct{}

func (s sample) add(name string, seed maphash.Seed) {
	s[name] = struct{}{}
	if len(s) > 2*maxSuspects {
		s.take(seed)
	}
}

// take drops all but maxSuspects names, and returns these.
func (s sample) take(seed maphash.Seed) []string {
	names := slices.Collect(maps.Keys(s))
	if len(names) > maxSuspects {
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(maphash.String(seed, a), maphash.String(seed, b)) })
		for _, name := range names[maxSuspects:] {
			delete(s, name)
		}
		names = names[:maxSuspects]
	}
	return names
}
