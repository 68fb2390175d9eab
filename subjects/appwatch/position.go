package appwatch

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

// Position is a place in the event stream: behind the event with this sequence. It is what a
// program stores to resume with [Options.From]. The zero value is no position. Positions can be
// compared with ==. Before the first event of a stream without a stream id, the position of an Item is
// not zero either: its text is "/0".
type Position struct {
	// StreamID is the identity of the stream ([subjects.MetadataStreamID]), empty where the stream
	// that is read has none: a mirror, a stream with sources.
	StreamID string
	// Sequence is that of the origin, also for a reader of a mirror or of a stream with sources.
	Sequence uint64
	// Owed is true between a [Loss] and the [Restart] that follows from it, and while a snapshot may
	// lack what its bucket had not got yet. A reader that resumes here gets that Restart.
	Owed bool
	// Check is a hash of the id of the event at Sequence, 0 where there is none, or another app's. A
	// reader that resumes finds with it that a stream which was put back to an earlier state has
	// another event there.
	Check uint32
	start bool // it is no zero value, though all else is
	// doubt is true if Owed is because of the bucket, or of what may have been removed: it is not
	// known that the stream lost anything.
	doubt bool
}

// at returns the position at another sequence.
func (p Position) at(sequence uint64) Position {
	p.Sequence = sequence
	p.start = p.StreamID == "" && sequence == 0
	return p
}

const (
	maxStreamIDBytes = 128
	owedMark         = "!"
	doubtMark        = "?"
	checkMark        = "."
	checkDigits      = 8
)

// checkOf is the Check of an event with this id (FNV-1a), 0 without one.
func checkOf(id string) uint32 {
	if id == "" {
		return 0
	}
	sum := uint32(2166136261)
	for i := range len(id) {
		sum = (sum ^ uint32(id[i])) * 16777619
	}
	return max(sum, 1)
}

// IsZero reports whether p is the zero value.
func (p Position) IsZero() bool { return p == Position{} }

// String is the text form: "<stream id>/<sequence>", then "." and eight hexadecimal digits if there
// is a Check, then "!" if it is Owed for a Loss, "?" if for another reason; the empty string for the zero value. [ParsePosition] reads it.
func (p Position) String() string {
	if p.IsZero() {
		return ""
	}
	text := p.StreamID + "/" + strconv.FormatUint(p.Sequence, 10)
	if p.Check != 0 {
		text += checkMark + p.check()
	}
	switch {
	case p.Owed && p.doubt:
		text += doubtMark
	case p.Owed:
		text += owedMark
	}
	return text
}

func (p Position) check() string { return fmt.Sprintf("%0*x", checkDigits, p.Check) }

// MarshalText returns String. It never fails.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePosition.
func (p *Position) UnmarshalText(text []byte) error {
	parsed, err := ParsePosition(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// ParsePosition is the inverse of [Position.String]. A number alone is a position without a stream
// id. The error wraps [subjects.ErrMalformed].
func ParsePosition(text string) (Position, error) {
	if text == "" {
		return Position{}, nil
	}
	var p Position
	rest, owed := strings.CutSuffix(text, owedMark)
	if !owed {
		rest, p.doubt = strings.CutSuffix(text, doubtMark)
	}
	p.Owed = owed || p.doubt
	if slash := strings.LastIndexByte(rest, '/'); slash >= 0 {
		p.StreamID, rest = rest[:slash], rest[slash+1:]
	}
	digits, check, checked := strings.Cut(rest, checkMark)
	sequence, err := strconv.ParseUint(digits, 10, 64)
	valid := err == nil && strconv.FormatUint(sequence, 10) == digits && isStreamID(p.StreamID)
	if checked {
		sum, err := strconv.ParseUint(check, 16, 32)
		p.Check = uint32(sum)
		valid = valid && err == nil && sum > 0 && p.check() == check
	}
	if !valid {
		if len(text) > maxStreamIDBytes {
			text = text[:maxStreamIDBytes] + "..."
		}
		return Position{}, fmt.Errorf("parse position %q: %w: want <stream id>/<sequence>[.<check>][!|?]", text, subjects.ErrMalformed)
	}
	return p.at(sequence), nil
}

// isStreamID accepts what has one text form: printable ASCII.
func isStreamID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return len(id) <= maxStreamIDBytes
}
