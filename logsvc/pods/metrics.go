package pods

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The causes for which the log of a container is opened again.
const (
	resumeEOF     = "eof"
	resumeError   = "error"
	resumeRestart = "restart"
)

// metrics are those of a Kubernetes; docs/metrics.md lists them.
type metrics struct {
	resumes  *prometheus.CounterVec
	failures prometheus.Counter
}

// newMetrics registers them; streams returns how many logs are read, of at most limit.
func newMetrics(reg prometheus.Registerer, streams func() float64, limit int) *metrics {
	register := promauto.With(reg)
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "appbridge_log_pod_streams", Help: "Kubernetes log streams that are taken.",
	}, streams)
	register.NewGauge(prometheus.GaugeOpts{
		Name: "appbridge_log_pod_streams_limit", Help: "Kubernetes log streams that may be taken at one time.",
	}).Set(float64(limit))
	m := &metrics{
		resumes: register.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_log_resumes_total", Help: "Times a log that is followed was opened again, by cause: the end of the answer, an error, a restart of the container.",
		}, []string{"cause"}),
		failures: register.NewCounter(prometheus.CounterOpts{
			Name: "appbridge_log_read_failures_total", Help: "Tries to read the log or the state of a replica that failed.",
		}),
	}
	for _, cause := range []string{resumeEOF, resumeError, resumeRestart} {
		m.resumes.WithLabelValues(cause)
	}
	return m
}
