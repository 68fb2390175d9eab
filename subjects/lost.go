package subjects

import (
	"fmt"
	"strconv"
	"strings"
)

// Messages of the event stream that belong to no app: their subjects have one token where an
// event has four, so that a filter for one project never matches them.
const (
	lostBranch   = ".events.lost"
	noticeBranch = ".events.notice"
)

// Lost is the subject of a filler, "<prefix>.events.lost". A filler takes the sequence of a message
// that was acknowledged and lost. It has no body and is purged at once; a reader skips it.
func (s Subjects) Lost() string { return s.prefix + lostBranch }

// Notice is the subject of a notice of loss, "<prefix>.events.notice". It has no body; ParseNotice
// reads its headers.
func (s Subjects) Notice() string { return s.prefix + noticeBranch }

// IsLost reports whether a message on subject is a filler.
func (s Subjects) IsLost(subject string) bool { return subject == s.Lost() }

// IsNotice reports whether a message on subject is a notice of loss.
func (s Subjects) IsNotice(subject string) bool { return subject == s.Notice() }

// LostRange is a range of sequences of the event stream, both ends included. Messages with these
// sequences were acknowledged, and may have been delivered; the stream has lost them.
type LostRange struct {
	From, To uint64
}

// Contains reports whether sequence is in the range.
func (r LostRange) Contains(sequence uint64) bool { return r.From <= sequence && sequence <= r.To }

// String is "<from>-<to>", as in metadata.
func (r LostRange) String() string {
	from, to := FormatNotice(r)
	return from + "-" + to
}

// FormatNotice returns the values of HeaderLostFrom and HeaderLostTo, the headers of a notice.
func FormatNotice(r LostRange) (from, to string) {
	return strconv.FormatUint(r.From, 10), strconv.FormatUint(r.To, 10)
}

// ParseNotice is the inverse of FormatNotice, for a range that is not empty. The error wraps
// ErrMalformed.
func ParseNotice(from, to string) (LostRange, error) {
	r, err := parseLostRange(from, to)
	if err != nil {
		return LostRange{}, fmt.Errorf("parse notice of loss: %w", err)
	}
	return r, nil
}

// ParseLostRange is the inverse of LostRange.String, and reads the value of MetadataLostPending.
// The error wraps ErrMalformed.
func ParseLostRange(value string) (LostRange, error) {
	from, to, _ := strings.Cut(value, "-")
	r, err := parseLostRange(from, to)
	if err != nil {
		return LostRange{}, fmt.Errorf("parse lost range %s: %w", quote(value), err)
	}
	return r, nil
}

// FormatLostRanges is the value of MetadataLostRanges: the ranges, joined by commas. No range gives
// the empty string.
func FormatLostRanges(ranges []LostRange) string {
	words := make([]string, len(ranges))
	for i, r := range ranges {
		words[i] = r.String()
	}
	return strings.Join(words, ",")
}

// ParseLostRanges is the inverse of FormatLostRanges, for ranges that are not empty; the empty
// string is no range. The error wraps ErrMalformed.
func ParseLostRanges(value string) ([]LostRange, error) {
	if value == "" {
		return nil, nil
	}
	var ranges []LostRange
	for word := range strings.SplitSeq(value, ",") {
		r, err := ParseLostRange(word)
		if err != nil {
			return nil, fmt.Errorf("parse lost ranges: %w", err)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

func parseLostRange(from, to string) (r LostRange, err error) {
	if r.From, err = parseSequence(from); err != nil {
		return r, err
	}
	if r.To, err = parseSequence(to); err != nil {
		return r, err
	}
	switch {
	case r.From == 0:
		return r, fmt.Errorf("%w: sequence %s", ErrMalformed, quote(from))
	case r.From > r.To:
		return r, fmt.Errorf("%w: %s ends before it begins", ErrMalformed, r)
	}
	return r, nil
}
