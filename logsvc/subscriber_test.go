package logsvc

import (
	"strings"
	"testing"
)

// Reports on probes cost little, also when a client writes them.
func TestReports(t *testing.T) {
	t.Parallel()
	listener := `{"type":"eg"}`
	long := `{"events":[` + strings.Repeat("{},", maxReport/3) + listener + `]}`
	for report, want := range map[string]bool{
		`{"events":[{"type":"in"},` + listener + `]}`: true, `{"events":[{"type":"in"}]}`: false, long: false, "": false,
	} {
		if got := namesListener([]byte(report)); got != want {
			t.Errorf("%.60s: got %t, want %t", report, got, want)
		}
	}
	r := newReader()
	for probe := range 3 {
		n := 0
		for range 1000 {
			if r.allowReport() {
				n++
			}
		}
		if want := min(probe, 1) * reportsPerProbe; n != want {
			t.Errorf("%d reports are read after %d probes, want %d", n, probe, want)
		}
		r.recordProbe()
	}
}

// What the server reports undelivered is counted once.
func TestUndelivered(t *testing.T) {
	t.Parallel()
	r := newReader()
	for seq := range uint64(2 * sentBefore) {
		r.recordMessage(seq+1, 10)
	}
	for _, seq := range []uint64{1, 2 * sentBefore, 2 * sentBefore, 2*sentBefore - 1, 5 * sentBefore} {
		r.undelivered(seq)
	}
	if got := r.delivered(100); got != 80 {
		t.Errorf("%d lines are delivered, want 80", got)
	}
}
