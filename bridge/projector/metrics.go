package projector

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of a projector; docs/metrics.md lists them.
type Metrics struct {
	foreignMessages  prometheus.Counter
	removedSequences prometheus.Counter
	restarts         prometheus.Counter
	writes           prometheus.Counter
	skipped          prometheus.Counter
	fetched          prometheus.Counter
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return promauto.With(reg).NewCounter(prometheus.CounterOpts{Name: "appbridge_" + name, Help: help})
	}
	return &Metrics{
		foreignMessages:  counter("foreign_messages_total", "Messages on the event subjects that are no app events."),
		removedSequences: counter("removed_sequences_total", "Sequences that were removed from the stream before they were projected."),
		restarts:         counter("snapshot_restarts_total", "Times the bucket's projection had to read again how far the bucket is."),
		writes:           counter("snapshot_writes_total", "Entries and delete markers written to the bucket."),
		skipped:          counter("snapshot_skipped_total", "Entries that could not be made for the bucket: they do not fit, or cannot be encoded."),
		fetched:          counter("snapshot_fetched_total", "Messages that the bucket's projection read from the stream's leader, since it did not have them in memory."),
	}
}
