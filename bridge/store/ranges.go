package store

import (
	"slices"

	"github.com/appbridge/appbridge/subjects"
)

// InRanges reports whether a sequence is in one of the ranges.
func InRanges(ranges []subjects.LostRange, sequence uint64) bool {
	return slices.ContainsFunc(ranges, func(r subjects.LostRange) bool { return r.Contains(sequence) })
}

// MergeRanges appends the ranges that are not there yet.
func MergeRanges(ranges, more []subjects.LostRange) []subjects.LostRange {
	for _, r := range more {
		if !slices.Contains(ranges, r) {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// WithoutRanges returns what is left of a range without others, in order.
func WithoutRanges(r subjects.LostRange, others []subjects.LostRange) []subjects.LostRange {
	left := []subjects.LostRange{r}
	for _, o := range others {
		var next []subjects.LostRange
		for _, l := range left {
			if o.To < l.From || l.To < o.From {
				next = append(next, l)
				continue
			}
			if l.From < o.From {
				next = append(next, subjects.LostRange{From: l.From, To: o.From - 1})
			}
			if l.To > o.To {
				next = append(next, subjects.LostRange{From: o.To + 1, To: l.To})
			}
		}
		left = next
	}
	return left
}
