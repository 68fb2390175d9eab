package publisher

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/appbridge/appbridge/subjects"
)

// Metrics are the metrics of queues and publishers; docs/metrics.md lists them.
type Metrics struct {
	published      *prometheus.CounterVec
	rejected       *prometheus.CounterVec
	merged         prometheus.Counter
	dropped        prometheus.Counter
	fenceConflicts prometheus.Counter
	retries        prometheus.Counter
	latency        prometheus.Histogram
	pendingChanges prometheus.Gauge
	pendingBytes   prometheus.Gauge
}

// NewMetrics registers the metrics with reg. rejected counts rejected objects by reason;
// the caller registers it.
func NewMetrics(reg prometheus.Registerer, rejected *prometheus.CounterVec) *Metrics {
	register := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return register.NewCounter(prometheus.CounterOpts{Name: "appbridge_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register.NewGauge(prometheus.GaugeOpts{Name: "appbridge_" + name, Help: help})
	}
	m := &Metrics{
		published: register.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_events_published_total",
			Help: "Events this replica stored in the stream, or found stored by a try of its own, by kind.",
		}, []string{"kind"}),
		rejected:       rejected,
		merged:         counter("updates_merged_total", "Updates that were merged into a newer one while the stream was behind."),
		dropped:        counter("changes_dropped_total", "Changes that were dropped at the hard limit; a comparison finds what they led to."),
		fenceConflicts: counter("fence_conflicts_total", "Times the stream refused an append because it, or the app, ended at another sequence than expected."),
		retries:        counter("publish_retries_total", "Times sending stopped to find out which appends were stored."),
		latency: register.NewHistogram(prometheus.HistogramOpts{
			Name: "appbridge_publish_latency_seconds", Help: "Time from observing a change to the stream's acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 18),
		}),
		pendingChanges: gauge("changes_pending", "Changes that wait for the stream."),
		pendingBytes:   gauge("changes_pending_bytes", "Estimated memory that waiting changes take."),
	}
	for _, kind := range []subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted} {
		m.published.WithLabelValues(string(kind))
	}
	return m
}

// Pending sets how many changes wait, and how many bytes they take.
func (m *Metrics) Pending(changes int, bytes int64) {
	m.pendingChanges.Set(float64(changes))
	m.pendingBytes.Set(float64(bytes))
}
