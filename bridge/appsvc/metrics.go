package appsvc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a Service; docs/metrics.md lists them.
type metrics struct {
	active   prometheus.Gauge
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	retries  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "appbridge_api_active_writes", Help: "Requests that change apps and are served at this moment."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_api_requests_total", Help: "Requests for app operations that have ended, by operation and by how: ok, an outcome, or the name of the error.",
		}, []string{"op", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "appbridge_api_request_seconds", Help: "Time from a request to its answer, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"op"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "appbridge_api_write_retries_total", Help: "Times that a write began anew, because the app had changed in between or Kubernetes was away.",
		}),
	}
	reg.MustRegister(m.active, m.requests, m.seconds, m.retries)
	return m
}

// ended counts a request.
func (m *metrics) ended(op, result string, asked time.Time) {
	m.requests.WithLabelValues(op, result).Inc()
	m.seconds.WithLabelValues(op).Observe(time.Since(asked).Seconds())
}
