package bridge

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/projector"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/retention"
)

// metrics of a Bridge; docs/metrics.md lists them.
type metrics struct {
	rejected      *prometheus.CounterVec
	lostSequences *prometheus.CounterVec
	resyncs       *prometheus.CounterVec
	altered       prometheus.Counter
	leader        prometheus.Gauge
	projector     *projector.Metrics
	publisher     *publisher.Metrics
	audit         *audit.Metrics
	retention     *retention.Watch
}

// Labels of lostSequences.
const (
	storageStream = "stream"
	storageBucket = "bucket"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	vec := func(name, help, label string) *prometheus.CounterVec {
		return promauto.With(reg).NewCounterVec(prometheus.CounterOpts{Name: "appbridge_" + name, Help: help}, []string{label})
	}
	m := &metrics{
		rejected:      vec("objects_left_out_total", "Versions of Knative Services that were not published, by reason.", "reason"),
		lostSequences: vec("lost_sequences_total", "Acknowledged sequences that the stream, or the bucket's stream, no longer had.", "storage"),
		resyncs:       vec("resyncs_total", "Comparisons of the cluster with what was published, by cause.", "cause"),
		altered:       promauto.With(reg).NewCounter(prometheus.CounterOpts{Name: "appbridge_altered_events_total", Help: "Sessions that ended because an acknowledged event did not come back from the stream as it was sent."}),
		leader:        promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: "appbridge_leader", Help: "1 while this replica publishes, else 0."}),
	}
	m.projector = projector.NewMetrics(reg)
	for _, reason := range []string{app.ReasonNoAppID, app.ReasonMalformed, app.ReasonEmptyPart, app.ReasonTooLong, app.ReasonConflict, app.ReasonTooLarge, app.ReasonConvert} {
		m.rejected.WithLabelValues(reason)
	}
	for _, storage := range []string{storageStream, storageBucket} {
		m.lostSequences.WithLabelValues(storage)
	}
	m.publisher = publisher.NewMetrics(reg, m.rejected)
	m.retention = retention.New(reg)
	return m
}

// reject counts a version of a Knative Service that is not published.
func (m *metrics) reject(reason string) { m.rejected.WithLabelValues(reason).Inc() }

// watch adds the gauges that are read off a running bridge.
func (m *metrics) watch(reg prometheus.Registerer, b *Bridge) {
	gauge := func(name, help string, read func() float64) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: "appbridge_" + name, Help: help}, read)
	}
	ofSession := func(name, help string, read func(s *session) float64) {
		gauge(name, help, func() float64 {
			if s := b.publishing.Load(); s != nil {
				return read(s)
			}
			return 0
		})
	}
	m.audit = audit.NewMetrics(reg, b.auditor.Load)
	gauge("ready", "1 while /readyz answers 200, else 0.", func() float64 { return oneIf(b.Ready() == nil) })
	gauge("oldest_pending_seconds", "Age of the oldest change that waits for the stream.", func() float64 {
		if q := b.memory.pending.Load(); q != nil {
			_, since := q.Oldest()
			return secondsSince(since)
		}
		return 0
	})
	ofSession("snapshot_lag_events", "Events acknowledged by the stream that the bucket does not reflect yet.", func(s *session) float64 {
		return max(0, float64(s.publisher.Highest())-float64(s.projector.Position()))
	})
	ofSession("snapshot_lag_seconds", "How long ago the oldest event was acknowledged that the bucket does not reflect yet.", func(s *session) float64 {
		return secondsSince(s.projector.BehindSince())
	})
	gauge("nats_connected", "1 while connected to NATS, else 0.", func() float64 { return oneIf(b.nc.IsConnected()) })
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{
		Name: "appbridge_nats_reconnects_total", Help: "Times the NATS connection was made again.",
	}, func() float64 { return float64(b.nc.Stats().Reconnects) })
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// secondsSince is the age of a time, 0 for the zero time.
func secondsSince(since time.Time) float64 {
	if since.IsZero() {
		return 0
	}
	return time.Since(since).Seconds()
}
