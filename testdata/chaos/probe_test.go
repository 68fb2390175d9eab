package main

import (
	"testing"
	"time"
)

func TestParseMetrics(t *testing.T) {
	const text = `# HELP appbridge_leader 1 while this replica publishes, else 0.
# TYPE appbridge_leader gauge
appbridge_leader 1
appbridge_resyncs_total{cause="overflow"} 3
appbridge_resyncs_total{cause="start"} 1
appbridge_oldest_pending_seconds 2.5
process_resident_memory_bytes 4.5903872e+07
nonsense
nonsense of a kind
`
	got := parseMetrics([]byte(text))
	want := map[string]float64{
		metricLeader: 1, metricOverflows: 3, `appbridge_resyncs_total{cause="start"}`: 1,
		metricOldest: 2.5, "process_resident_memory_bytes": 45903872,
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: got %v, want %v", name, got[name], value)
		}
	}
}

func TestOldest(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 10, 0, time.UTC)
	for _, test := range []struct {
		name    string
		seconds float64
		want    time.Time
	}{
		{"nothing waits", 0, at},
		{"something waits", 2.5, at.Add(-2500 * time.Millisecond)},
	} {
		s := status{at: at, metrics: map[string]float64{metricOldest: test.seconds}}
		if got := s.oldest(); !got.Equal(test.want) {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

// A gap begins with the oldest change that waited, also if a later look shows none.
func TestWaitedSince(t *testing.T) {
	at := time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)
	look := func(at time.Time, pending, oldest float64) status {
		return status{at: at, metrics: map[string]float64{metricPending: pending, metricOldest: oldest}}
	}
	for _, test := range []struct {
		name  string
		looks []status
		want  time.Time
	}{
		{"no look", nil, at},
		{"nothing waited", []status{look(at.Add(-time.Minute), 0, 0)}, at},
		{"some waited before the last look", []status{look(at.Add(-time.Second), 3, 14), look(at, 0, 0)}, at.Add(-15 * time.Second)},
		{"all came later", []status{look(at.Add(time.Second), 1, 0.5)}, at},
	} {
		if got := waitedSince(at, test.looks); !got.Equal(test.want) {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}
