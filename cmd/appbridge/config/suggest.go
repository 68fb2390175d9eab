package config

import "strings"

// didYouMean is ": did you mean x?" for the nearest known name: one that begins with what was
// written, else the one with the fewest changes. It is empty when none is near.
func didYouMean(written string, known []string) string {
	best := completed(written, known)
	if best == "" {
		bestDistance := max(2, len(written)/3) + 1
		for _, k := range known {
			if d := editDistance(written, k); d < bestDistance {
				best, bestDistance = k, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// completed is the shortest known name that begins with written, if all the
// others that do begin with that name.
func completed(written string, known []string) string {
	shortest := ""
	for _, k := range known {
		if strings.HasPrefix(k, written) && (shortest == "" || len(k) < len(shortest)) {
			shortest = k
		}
	}
	for _, k := range known {
		if strings.HasPrefix(k, written) && !strings.HasPrefix(k, shortest) {
			return ""
		}
	}
	return shortest
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
