package app

import "k8s.io/apimachinery/pkg/util/resourceversion"

// CompareVersions compares two resourceVersions of one resource; versions that cannot be compared
// count as newer, so that nothing is skipped.
func CompareVersions(a, b string) int {
	if a == b {
		return 0
	}
	n, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return n
}

// NewerVersion is the newer of two resourceVersions; empty stands for none.
func NewerVersion(a, b string) string {
	if a == "" || b != "" && CompareVersions(b, a) > 0 {
		return b
	}
	return a
}
