package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

func upTo(from, to uint64) (all []uint64) {
	for s := from; s <= to; s++ {
		all = append(all, s)
	}
	return all
}

func ranges(ends ...uint64) (all []subjects.LostRange) {
	for i := 0; i < len(ends); i += 2 {
		all = append(all, subjects.LostRange{From: ends[i], To: ends[i+1]})
	}
	return all
}

// The stream had 1-100 in the copy and 1-150 when it ended.
func TestJudgeStream(t *testing.T) {
	alive := rollback{epoch: 1, floor: 99, high: 150, memory: true}
	dead := rollback{epoch: 1, floor: 99, high: 150, checkpoint: checkpoint{Stream: 140}}
	unseen := func(from, to uint64) []audit.Loss {
		return []audit.Loss{{LostRange: subjects.LostRange{From: from, To: to}, Unseen: true}}
	}
	for _, test := range []struct {
		name             string
		r                rollback
		a                aftermath
		unnoticed, wrong int
		unseen           []audit.Loss
	}{
		{name: "named", r: alive, a: aftermath{gone: upTo(101, 150), survived: []uint64{100}, reread: true, named: namedLosses{stream: ranges(101, 150)}}},
		{name: "named in two", r: alive, a: aftermath{gone: upTo(101, 150), reread: true, named: namedLosses{stream: ranges(101, 120, 121, 160)}}},
		{name: "not named", r: alive, a: aftermath{gone: upTo(101, 150), reread: true}, unnoticed: 1},
		{name: "an earlier loss named", r: alive, a: aftermath{gone: upTo(101, 150), reread: true, named: namedLosses{stream: ranges(51, 90)}}, unnoticed: 1},
		{name: "not all named", r: alive, a: aftermath{gone: upTo(101, 150), reread: true, named: namedLosses{stream: ranges(101, 149)}}, unnoticed: 1},
		{name: "counted", r: alive, a: aftermath{gone: upTo(101, 150), reread: true, counted: namedCounts{stream: 50}}},
		{name: "not all counted", r: alive, a: aftermath{gone: upTo(101, 150), reread: true, counted: namedCounts{stream: 49}}, unnoticed: 1},
		{name: "nothing lost", r: alive, a: aftermath{survived: upTo(100, 150), reread: true}},
		{name: "named what survived", r: alive, a: aftermath{gone: upTo(101, 150), survived: []uint64{100}, reread: true, named: namedLosses{stream: ranges(100, 150)}}, wrong: 1},
		{name: "not read again", r: alive, a: aftermath{gone: upTo(100, 150), named: namedLosses{stream: ranges(101, 150)}}},
		{name: "not read again, not named", r: alive, a: aftermath{gone: upTo(100, 150)}, unnoticed: 1},
		{name: "all that the checkpoint knew is named", r: dead, a: aftermath{gone: upTo(101, 150), reread: true, named: namedLosses{stream: ranges(101, 140)}}, unseen: unseen(141, 150)},
		{name: "less is named than the checkpoint knew", r: dead, a: aftermath{gone: upTo(101, 150), reread: true, named: namedLosses{stream: ranges(101, 130)}}, unnoticed: 1, unseen: unseen(141, 150)},
		{name: "the bucket knew more", r: rollback{epoch: 1, floor: 99, high: 150, projected: 150}, a: aftermath{gone: upTo(101, 150), reread: true}, unnoticed: 1},
		{name: "nothing knew of it", r: rollback{epoch: 1, floor: 99, high: 150, checkpoint: checkpoint{Stream: 80}}, a: aftermath{gone: upTo(101, 150), reread: true}, unseen: unseen(101, 150)},
		{name: "not rolled back", r: rollback{memory: true}, a: aftermath{gone: upTo(101, 150), reread: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := test.r.judge(test.a)
			if len(f.unnoticed) != test.unnoticed || len(f.wrong) != test.wrong || len(f.unseen) != len(test.unseen) || !reflect.DeepEqual(f.losses, test.unseen) {
				t.Errorf("got %+v, want %d unnoticed, %d wrong, unseen %v", f, test.unnoticed, test.wrong, test.unseen)
			}
		})
	}
}

func TestJudgeBucket(t *testing.T) {
	alive := rollback{bucketFloor: 200, bucketHigh: 300, memory: true}
	for _, test := range []struct {
		name              string
		r                 rollback
		a                 aftermath
		unnoticed, unseen int
	}{
		{name: "named", r: alive, a: aftermath{named: namedLosses{bucket: ranges(201, 300)}}},
		{name: "counted", r: alive, a: aftermath{counted: namedCounts{bucket: 100}}},
		{name: "not named", r: alive, unnoticed: 1},
		{name: "another one named", r: alive, a: aftermath{named: namedLosses{bucket: ranges(101, 200)}}, unnoticed: 1},
		{name: "too little to be sure", r: rollback{bucketFloor: 200, bucketHigh: 210, memory: true}},
		{name: "the checkpoint knew", r: rollback{bucketFloor: 200, bucketHigh: 300, checkpoint: checkpoint{Bucket: 290}}, unnoticed: 1},
		{name: "nothing knew of it", r: rollback{bucketFloor: 200, bucketHigh: 300, checkpoint: checkpoint{Bucket: 150}}, unseen: 1},
	} {
		if f := test.r.judge(test.a); len(f.unnoticed) != test.unnoticed || len(f.unseen) != test.unseen {
			t.Errorf("%s: got %+v, want %d unnoticed and %d unseen", test.name, f, test.unnoticed, test.unseen)
		}
	}
}

func TestJudgeRemoval(t *testing.T) {
	for _, test := range []struct {
		name        string
		unprojected []uint64
		a           aftermath
		want        int
	}{
		{"all were projected", nil, aftermath{}, 0},
		{"named", upTo(5, 9), aftermath{named: namedLosses{removed: ranges(4, 12)}}, 0},
		{"counted", upTo(5, 9), aftermath{counted: namedCounts{removed: 5}}, 0},
		{"not named", upTo(5, 9), aftermath{}, 1},
		{"not all named", upTo(5, 9), aftermath{named: namedLosses{removed: ranges(5, 8)}}, 1},
		{"named as lost", upTo(5, 9), aftermath{named: namedLosses{stream: ranges(5, 9)}}, 1},
	} {
		if f := (removal{}).judge(test.unprojected, test.a); len(f.unnoticed) != test.want {
			t.Errorf("%s: got %+v, want %d unnoticed", test.name, f, test.want)
		}
	}
}

func TestLostInput(t *testing.T) {
	rollbacks := []rollback{{epoch: 1, floor: 99, high: 150, first: 3}, {bucketHigh: 9}, {epoch: 2, floor: 180, high: 190}}
	unseen := []audit.Loss{{LostRange: subjects.LostRange{From: 185, To: 190}, Epoch: 1, Unseen: true}}
	for _, test := range []struct {
		name           string
		named, notices []subjects.LostRange
		epochs         []int
		wrong          int
	}{
		{"agreed", ranges(101, 150, 181, 184), ranges(101, 150, 181, 184), []int{1, 0, 1}, 0},
		{"agreed in other parts", ranges(101, 120, 101, 150), ranges(101, 150), []int{1, 0, 0}, 0},
		{"no notice", ranges(101, 150), nil, []int{1, 0}, 1},
		{"a notice alone", nil, ranges(101, 150), []int{1}, 1},
		{"no loss there", ranges(51, 60), ranges(51, 60), []int{1}, 1},
	} {
		losses, wrong := lostInput(rollbacks, unseen, namedLosses{stream: test.named}, test.notices)
		var epochs []int
		for _, l := range losses {
			epochs = append(epochs, l.Epoch)
		}
		if !slices.Equal(epochs, test.epochs) || len(wrong) != test.wrong {
			t.Errorf("%s: got %v, %v, want epochs %v and %d wrong", test.name, losses, wrong, test.epochs, test.wrong)
		}
	}
}

func TestNamedLosses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const before = `{"level":"error","msg":"the stream lost acknowledged events","stream":"FLYTE_APPS","from":1,"to":2}` + "\n"
	const after = `{"level":"info","msg":"published","sequence":7}
not JSON
{"level":"error","msg":"the stream lost acknowledged events","stream":"FLYTE_APPS","from":101,"to":150}
{"level":"error","msg":"the stream lost acknowledged events","stream":"FLYTE_APPS","from":101,"to":150}
{"level":"error","msg":"the bucket lost acknowledged entries","bucket":"flyte-apps","from":201,"to":250}
{"level":"error","msg":"events were removed from the stream before they were projected","stream":"FLYTE_APPS","from":160,"to":170}
{"level":"error","msg":"the stream lost ackn`
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{bridges: []*bridge{{name: "A", log: path}, {name: "B", log: path + "-missing"}}}
	offsets := w.logEnds()
	if err := os.WriteFile(path, []byte(before+after), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := w.namedSince(offsets)
	want := namedLosses{stream: ranges(101, 150), bucket: ranges(201, 250), removed: ranges(160, 170)}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if all, err := w.namedSince(nil); err != nil || len(all.stream) != 2 {
		t.Errorf("from the start: got %+v, %v", all, err)
	}
}

func TestMerged(t *testing.T) {
	if got, want := merged(ranges(10, 20, 1, 5, 6, 8, 15, 30)), ranges(1, 8, 10, 30); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
