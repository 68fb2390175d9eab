package config

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// didYouMean is ": did you mean x?" for the nearest known name: one that begins with what was
// written, if all others that do begin with that one, else the one with the fewest changes. It is
// empty when none is near.
func didYouMean(written string, known iter.Seq[string]) string {
	names := slices.Sorted(known)
	longer := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, written) })
	if len(longer) > 0 && !slices.ContainsFunc(longer, func(name string) bool { return !strings.HasPrefix(name, longer[0]) }) {
		return ": did you mean " + longer[0] + "?"
	}
	nearest := slices.MinFunc(names, func(a, b string) int { return cmp.Compare(editDistance(written, a), editDistance(written, b)) })
	if editDistance(written, nearest) > max(2, len(written)/3) {
		return ""
	}
	return ": did you mean " + nearest + "?"
}

// editDistance counts the single-byte insertions, deletions, replacements and
// swaps of neighbours between a and b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(replace, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
