package store

import (
	"fmt"
)

const (
	// farAhead is how far a sequence that was read from outside of the stream may be ahead of
	// everything else that is known.
	farAhead = 1_000_000
	// maxSequence is the highest sequence that is believed where there is nothing to compare it with.
	maxSequence = 1 << 53
)

// OutsideError reports a value that was read from outside and cannot be. An operator has to repair
// it. The bridge changes nothing meanwhile, and goes on by itself afterwards.
type OutsideError struct {
	Source, Value, Problem, Repair string
}

// maxValue bounds the value that an error shows.
const maxValue = 300

func (e *OutsideError) Error() string {
	value := e.Value
	if len(value) > maxValue {
		value = value[:maxValue] + "…"
	}
	return fmt.Sprintf("%s has the value %q: %s; %s", e.Source, value, e.Problem, e.Repair)
}

// ends are what a sequence from outside is compared with. A nil stream has none.
type ends struct {
	stream, bucket string // the names, "" if there is no such stream
	highest        uint64 // sequence of the event stream that is known by other means
	bucketLast     uint64
}

// checkStream returns why a sequence of the event stream cannot be, "" if it can.
func (e ends) checkStream(sequence uint64) string {
	switch {
	case e.stream == "" && e.bucket == "":
		return tooHigh(sequence)
	case sequence > e.highest && sequence-e.highest > farAhead:
		return fmt.Sprintf("sequence %d is more than %d ahead of the stream and of what the bucket reflects, which end at %d", sequence, farAhead, e.highest)
	}
	return ""
}

// checkBucket returns why a sequence of the bucket's stream cannot be, "" if it can.
func (e ends) checkBucket(sequence uint64) string {
	switch {
	case e.bucket == "":
		return tooHigh(sequence)
	case sequence > e.bucketLast && sequence-e.bucketLast > farAhead:
		return fmt.Sprintf("sequence %d of the bucket's stream is more than %d ahead of its end, %d", sequence, farAhead, e.bucketLast)
	}
	return ""
}

func tooHigh(sequence uint64) string {
	if sequence > maxSequence {
		return fmt.Sprintf("no stream has a sequence of %d", sequence)
	}
	return ""
}
