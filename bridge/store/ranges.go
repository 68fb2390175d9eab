package store

import (
	"cmp"
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
func WithoutRanges(r subjects.LostRange, others []subjects.LostRange) (left []subjects.LostRange) {
	for _, o := range slices.SortedFunc(slices.Values(others), func(a, b subjects.LostRange) int { return cmp.Compare(a.From, b.From) }) {
		if o.To < r.From || r.To < o.From {
			continue
		}
		if r.From < o.From {
			left = append(left, subjects.LostRange{From: r.From, To: o.From - 1})
		}
		r.From = o.To + 1
	}
	if r.From <= r.To {
		left = append(left, r)
	}
	return left
}
