package appsvc

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/answer"
)

// Writes are bounded in number and in bytes, reads by being served one at a time.
func TestSlots(t *testing.T) {
	s := &Service{cfg: Config{MaxWrites: 3}, metrics: newMetrics(prometheus.NewRegistry())}
	write, read := operation{write: true}, operation{}
	takes := func(op operation, size int, want subjects.Code) {
		t.Helper()
		var failure *answer.Error
		err := s.begin(op, size)
		if errors.As(err, &failure); err == nil && want != 0 || err != nil && failure.Code != want {
			t.Errorf("%d bytes: got %v, want %v", size, err, want)
		}
	}
	takes(write, heldBytes-1, 0)
	takes(write, 2, subjects.CodeResourceExhausted)
	takes(write, 1, 0)
	takes(write, 0, 0)
	takes(write, 0, subjects.CodeResourceExhausted)
	takes(read, 1<<20, 0)
	s.release(heldBytes - 1)
	takes(write, heldBytes-1, 0)
	s.closing = true
	takes(read, 0, subjects.CodeUnavailable)
}
