package audit

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

var (
	testSubjects = func() subjects.Subjects {
		s, err := subjects.New(subjects.DefaultPrefix)
		if err != nil {
			panic(err)
		}
		return s
	}()
	never = func(time.Time) bool { return false }
)

func appID(name string) subjects.AppID {
	return subjects.AppID{Project: "p", Domain: "d", Name: name}
}

// event is the message of an event.
func event(name string, kind subjects.EventKind, sequence uint64) *store.Message {
	subject, err := testSubjects.Event(appID(name), kind)
	if err != nil {
		panic(err)
	}
	return &store.Message{Subject: subject, Sequence: sequence, Header: map[string][]string{
		subjects.HeaderUID: {"u-" + name}, subjects.HeaderResourceVersion: {strconv.FormatUint(100+sequence, 10)},
		subjects.CEType: {kind.Type()}, subjects.CEID: {fmt.Sprintf("u-%s/%d", name, 100+sequence)}, subjects.HeaderMsgID: {"x"},
	}}
}

// entry is the bucket's message for an event, stored at a sequence of the bucket's stream.
func entry(of *store.Message, at uint64) *store.Message {
	id, kind, err := testSubjects.ParseEvent(of.Subject)
	if err != nil {
		panic(err)
	}
	key, err := id.Key()
	if err != nil {
		panic(err)
	}
	m := &store.Message{Subject: subjects.BucketSubject(subjects.DefaultBucket, key), Sequence: at, Header: map[string][]string{}}
	for name, values := range of.Header {
		if name != subjects.HeaderMsgID {
			m.Header[name] = values
		}
	}
	m.Header[subjects.HeaderEventSequence] = []string{strconv.FormatUint(of.Sequence, 10)}
	if kind == subjects.Deleted {
		m.Header[subjects.HeaderKVOperation] = []string{subjects.KVDelete}
	}
	return m
}

func with(m *store.Message, header, value string) *store.Message {
	h := map[string][]string{}
	for name, values := range m.Header {
		h[name] = values
	}
	h[header] = []string{value}
	return &store.Message{Subject: m.Subject, Sequence: m.Sequence, Header: h}
}

func expectedOf(name string, sequence, at uint64) Expected {
	return Expected{Key: "p.d." + name, Exists: true, Sequence: sequence, Fence: sequence, Entry: at, Event: sequence}
}

func TestScreen(t *testing.T) {
	created, updated, deleted := event("a", subjects.Created, 5), event("a", subjects.Updated, 7), event("a", subjects.Deleted, 9)
	late := event("a", subjects.Updated, 21)
	foreign := event("a", subjects.Updated, 8)
	foreign.Header = map[string][]string{"x": {"y"}}
	b := expectedOf("a", 7, 3)
	unsure := b
	unsure.Pending = true
	gone := Expected{Key: "p.d.a", Sequence: 9, Fence: 9}
	a := []string{"p.d.a"}
	for _, test := range []struct {
		name    string
		stream  []*store.Message
		beliefs []Expected
		bucket  []*store.Message
		age     bool
		want    []string
	}{
		{name: "right", stream: []*store.Message{created, updated}, beliefs: []Expected{b}, bucket: []*store.Message{entry(updated, 3)}},
		{name: "right, not known", stream: []*store.Message{created, deleted}, bucket: []*store.Message{entry(deleted, 3)}},
		{name: "right, deleted and known", stream: []*store.Message{deleted}, beliefs: []Expected{gone}, bucket: []*store.Message{entry(deleted, 3)}},
		{
			name: "truncated in another encoding", stream: []*store.Message{updated}, beliefs: []Expected{b},
			bucket: []*store.Message{with(with(entry(updated, 3), subjects.HeaderTruncated, "spec"), subjects.CEDataContentType, "x")},
		},
		{name: "retention took the event", beliefs: []Expected{expectedOf("a", 2, 3)}, bucket: []*store.Message{entry(event("a", subjects.Updated, 2), 3)}},
		{name: "retention took the event of a marker", bucket: []*store.Message{entry(event("a", subjects.Deleted, 2), 3)}},
		{name: "a filler", stream: []*store.Message{{Subject: testSubjects.Lost(), Sequence: 6}}},
		{name: "an old marker was removed", stream: []*store.Message{deleted}, age: true},
		{name: "a new event since", stream: []*store.Message{updated, late}, beliefs: []Expected{b}, bucket: []*store.Message{entry(updated, 3)}},
		{name: "a new event and its entry since", stream: []*store.Message{updated}, beliefs: []Expected{b}, bucket: []*store.Message{entry(late, 31)}},
		{name: "an app that is new since", stream: []*store.Message{late}},
		{name: "under way", stream: []*store.Message{created}, beliefs: []Expected{unsure}, bucket: []*store.Message{entry(created, 3)}},
		{
			name: "a message that is no event behind it", stream: []*store.Message{created, foreign}, bucket: []*store.Message{entry(created, 3)},
			beliefs: []Expected{{Key: "p.d.a", Exists: true, Sequence: 5, Fence: 8, Entry: 3, Event: 5}},
		},

		{name: "the last event is gone", stream: []*store.Message{created}, beliefs: []Expected{b}, bucket: []*store.Message{entry(updated, 3)}, want: a},
		{name: "the only event is gone", beliefs: []Expected{b}, bucket: []*store.Message{entry(updated, 3)}, want: a},
		{name: "an event of somebody else", stream: []*store.Message{deleted}, beliefs: []Expected{b}, bucket: []*store.Message{entry(updated, 3)}, want: a},
		{name: "not known, and not deleted", stream: []*store.Message{updated}, bucket: []*store.Message{entry(updated, 3)}, want: a},
		{name: "the key is gone", stream: []*store.Message{updated}, beliefs: []Expected{b}, want: a},
		{name: "the key is gone, of an app without an event", beliefs: []Expected{expectedOf("a", 2, 3)}, want: a},
		{name: "the marker is gone, not known", stream: []*store.Message{deleted}, want: a},
		{name: "the marker is gone, known", stream: []*store.Message{deleted}, beliefs: []Expected{gone}, want: a},
		{name: "written by somebody, headers right", stream: []*store.Message{updated}, beliefs: []Expected{b}, bucket: []*store.Message{entry(updated, 4)}, want: a},
		{name: "an old entry put back", stream: []*store.Message{created, updated}, beliefs: []Expected{b}, bucket: []*store.Message{entry(created, 4)}, want: a},
		{name: "an old entry of an app that is not known", stream: []*store.Message{updated, deleted}, bucket: []*store.Message{entry(updated, 4)}, want: a},
		{name: "another header", stream: []*store.Message{updated}, beliefs: []Expected{b}, bucket: []*store.Message{with(entry(updated, 3), subjects.HeaderUID, "u-b")}, want: a},
		{name: "another header, not known", stream: []*store.Message{deleted}, bucket: []*store.Message{with(entry(deleted, 3), subjects.CEID, "x")}, want: a},
		{name: "a marker for an entry", stream: []*store.Message{updated}, beliefs: []Expected{b}, bucket: []*store.Message{with(entry(updated, 3), subjects.HeaderKVOperation, "DEL")}, want: a},
		{name: "damaged", stream: []*store.Message{updated}, beliefs: []Expected{b}, bucket: []*store.Message{{Subject: entry(updated, 3).Subject, Sequence: 3}}, want: a},
		{name: "forged, never was", bucket: []*store.Message{entry(updated, 4)}, want: a},
		{name: "forged, never was, from before the stream", bucket: []*store.Message{entry(event("a", subjects.Updated, 1), 4)}, want: a},
		{name: "ahead of the stream", stream: []*store.Message{updated}, beliefs: []Expected{b}, bucket: []*store.Message{entry(late, 4)}, want: a},
		{name: "a foreign key", bucket: []*store.Message{{Subject: "$KV.flyte-apps.x", Sequence: 2}}, want: []string{"$KV.flyte-apps.x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			needs := never
			if test.age {
				needs = func(time.Time) bool { return true }
			}
			s := NewScreen(testSubjects, subjects.DefaultBucket, 3, 20, needs)
			all := slices.Clone(test.stream)
			for _, m := range test.stream {
				s.AddEvent(m)
			}
			s.Believe(test.beliefs, 30)
			for _, m := range test.bucket {
				s.AddEntry(m)
			}
			got, err := s.Suspects(func(sequence uint64) (string, error) {
				for _, m := range all {
					if m.Sequence == sequence {
						id, _, err := testSubjects.ParseEvent(m.Subject)
						if err != nil {
							return "", err
						}
						return id.Key()
					}
				}
				return "", nil
			})
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// A million apps that were deleted long ago cost some tens of megabytes while they are screened.
func TestScreenMemory(t *testing.T) {
	const apps = 50_000
	before := heap()
	s := NewScreen(testSubjects, subjects.DefaultBucket, 1, 10*apps, never)
	for _, kind := range []subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted} {
		for i := range apps {
			s.AddEvent(event(strconv.Itoa(i), kind, uint64(1+3*i)))
		}
	}
	s.Believe(nil, 10*apps)
	if len(s.rows) != apps {
		t.Errorf("%d rows, want %d", len(s.rows), apps)
	}
	per := (heap() - before) / apps
	t.Logf("%d bytes an app", per)
	if per > 72 {
		t.Errorf("%d bytes an app", per)
	}
	runtime.KeepAlive(s)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What is suspect for ever and left alone, as foreign keys are, crowds nothing out.
func TestSuspectsAreNotCrowdedOut(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		s := NewScreen(testSubjects, subjects.DefaultBucket, 1, 10, never)
		e := event("a", subjects.Created, 1)
		s.AddEvent(e)
		s.Believe(nil, 1<<20)
		for i := range 3 * maxSuspects {
			s.AddEntry(&store.Message{Subject: "$KV." + subjects.DefaultBucket + fmt.Sprint(".foreign.", i), Sequence: uint64(10 + i)})
		}
		forged := entry(e, 1<<19)
		forged.Header[subjects.CEID] = []string{"forged"}
		s.AddEntry(forged)
		suspects, err := s.Suspects(func(uint64) (string, error) { return "", nil })
		if err != nil {
			t.Fatal(err)
		}
		if len(suspects) > 2*maxSuspects {
			t.Errorf("%d suspects", len(suspects))
		}
		if !slices.Contains(suspects, "p.d.a") {
			t.Fatal("the forged entry is not suspected")
		}
		for _, key := range suspects {
			seen[key] = true
		}
	}
	if len(seen) != maxSuspects+1 {
		t.Errorf("%d foreign keys are reported, want the same %d each time", len(seen)-1, maxSuspects)
	}
}

// Of more apps than one screen suspects, each is suspected by one or another.
func TestEverySuspectHasItsTurn(t *testing.T) {
	seen := map[string]bool{}
	for range 60 {
		s := NewScreen(testSubjects, subjects.DefaultBucket, 1, 1<<20, never)
		gone := map[uint64]string{}
		for i := range 2 * maxSuspects { // of an app that nobody knows, twice as many as there is room for
			name := fmt.Sprint("a", i)
			s.AddEvent(event(name, subjects.Created, uint64(i+1)))
			gone[uint64(i+1)] = "p.d." + name
		}
		s.Believe(nil, 1<<20)
		suspects, err := s.Suspects(func(sequence uint64) (string, error) { return gone[sequence], nil })
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range suspects {
			seen[key] = true
		}
	}
	if len(seen) != 2*maxSuspects {
		t.Errorf("%d of %d were ever suspected", len(seen), 2*maxSuspects)
	}
}
