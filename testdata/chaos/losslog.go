package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/appbridge/appbridge/subjects"
)

// What a bridge logs when it names a loss; docs/guarantees.md has the messages.
const (
	logStreamLost = "the stream lost acknowledged events"
	logBucketLost = "the bucket lost acknowledged entries"
	logRemoved    = "events were removed from the stream before they were projected"
)

// The metrics that go with them.
const (
	metricStreamLost = `appbridge_lost_sequences_total{storage="stream"}`
	metricBucketLost = `appbridge_lost_sequences_total{storage="bucket"}`
	metricRemoved    = "appbridge_removed_sequences_total"
)

// namedLosses are the ranges that bridges named in their logs.
type namedLosses struct {
	stream, bucket, removed []subjects.LostRange
}

// namedSince reads the bridges' logs from offsets on.
func (w *world) namedSince(offsets map[string]int64) (namedLosses, error) {
	var all namedLosses
	for _, b := range w.bridges {
		text, err := readFrom(b.log, offsets[b.log])
		if err != nil {
			return all, fmt.Errorf("read the log of bridge %s: %w", b.name, err)
		}
		all.add(text)
	}
	return all, nil
}

// logEnds are the sizes of the bridges' logs.
func (w *world) logEnds() map[string]int64 {
	ends := map[string]int64{}
	for _, b := range w.bridges {
		if info, err := os.Stat(b.log); err == nil {
			ends[b.log] = info.Size()
		}
	}
	return ends
}

func readFrom(path string, offset int64) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// add takes in a log: JSON objects, one a line. Other lines are passed over.
func (n *namedLosses) add(log []byte) {
	for line := range bytes.Lines(log) {
		var said struct {
			Msg      string
			From, To uint64
		}
		if json.Unmarshal(line, &said) != nil {
			continue
		}
		into := map[string]*[]subjects.LostRange{logStreamLost: &n.stream, logBucketLost: &n.bucket, logRemoved: &n.removed}[said.Msg]
		r := subjects.LostRange{From: said.From, To: said.To}
		if into != nil && !slices.Contains(*into, r) {
			*into = append(*into, r)
		}
	}
}

// merged are the same sequences in as few ranges as possible, in order.
func merged(ranges []subjects.LostRange) []subjects.LostRange {
	ordered := slices.SortedFunc(slices.Values(ranges), func(a, b subjects.LostRange) int { return cmp.Compare(a.From, b.From) })
	var all []subjects.LostRange
	for _, r := range ordered {
		if n := len(all); n > 0 && r.From <= all[n-1].To+1 {
			all[n-1].To = max(all[n-1].To, r.To)
			continue
		}
		all = append(all, r)
	}
	return all
}

// notIn are the sequences that no range contains.
func notIn(sequences []uint64, ranges []subjects.LostRange) []uint64 {
	return slices.DeleteFunc(slices.Clone(sequences), func(s uint64) bool {
		return slices.ContainsFunc(ranges, func(r subjects.LostRange) bool { return r.Contains(s) })
	})
}

// overlaps reports whether any range has a sequence above low and up to high.
func overlaps(ranges []subjects.LostRange, low, high uint64) bool {
	return slices.ContainsFunc(ranges, func(r subjects.LostRange) bool { return r.From <= high && r.To > low })
}

// span is the first and the last of some sequences, in order.
func span(sequences []uint64) string {
	if len(sequences) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %d-%d", len(sequences), sequences[0], sequences[len(sequences)-1])
}
