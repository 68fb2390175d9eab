package publisher

import (
	"fmt"
	"testing"
)

// A pending change stays what it was: merged counts and marks are kept.
func TestPendingKeepsWhatWasMerged(t *testing.T) {
	q := testQueue(2, 1<<20)
	script(q, testID, "cuuu")
	q.close()
	held := q.Pending(nil)[testID].Changes
	if got := fmt.Sprint(len(held), held[1].Merged); got != "2 2" {
		t.Errorf("got %s changes and merged updates, want 2 2", got)
	}
}
