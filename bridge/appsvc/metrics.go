package appsvc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics of a Service; docs/metrics.md lists them.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	retries  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, l *limits) *metrics {
	register := promauto.With(reg)
	gauge := func(name, help string, of func() int) {
		register.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of()) })
	}
	gauge("appbridge_api_active_reads", "Requests that change nothing and are served at this moment.", func() int { return l.reads.Usage().Active })
	gauge("appbridge_api_pending_reads", "Requests that change nothing and wait for their turn.", func() int { return l.reads.Usage().Pending })
	gauge("appbridge_api_active_writes", "Requests that change apps and are served at this moment.", func() int { return l.writes.Usage().Active })
	gauge("appbridge_api_pending_writes", "Requests that change apps and wait for their turn, but not for another write of their app.", func() int { return l.writes.Usage().Pending })
	return &metrics{
		requests: register.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_api_requests_total", Help: "Requests for app operations that have ended, by operation and by how: ok, an outcome, the name of the error, or gone when the requester disconnected.",
		}, []string{"op", "result"}),
		seconds: register.NewHistogramVec(prometheus.HistogramOpts{
			Name: "appbridge_api_request_seconds", Help: "Time from a request to its answer, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"op"}),
		retries: register.NewCounter(prometheus.CounterOpts{
			Name: "appbridge_api_write_retries_total", Help: "Times that a write was tried again, because the app had changed in between or Kubernetes was unavailable.",
		}),
	}
}

func (m *metrics) ended(op, result string, arrived time.Time) {
	m.requests.WithLabelValues(op, result).Inc()
	m.seconds.WithLabelValues(op).Observe(time.Since(arrived).Seconds())
}
