package logsvc

import "github.com/prometheus/client_golang/prometheus"

// Why the log of a container was opened again.
const (
	resumeEOF     = "eof"
	resumeError   = "error"
	resumeRestart = "restart"
)

// podMetrics are those of a Kubernetes; docs/metrics.md lists them.
type podMetrics struct {
	streams  prometheus.Gauge
	resumes  *prometheus.CounterVec
	failures prometheus.Counter
}

func newPodMetrics() *podMetrics {
	m := &podMetrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "appbridge_log_pod_streams", Help: "Kubernetes log streams that are taken.",
		}),
		resumes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_log_resumes_total", Help: "Times a log that is followed was opened again, by cause: the end of the answer, an error, a restart of the container.",
		}, []string{"cause"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "appbridge_log_read_failures_total", Help: "Tries to read the log or the state of a replica that failed.",
		}),
	}
	for _, cause := range []string{resumeEOF, resumeError, resumeRestart} {
		m.resumes.WithLabelValues(cause)
	}
	return m
}

func (m *podMetrics) register(reg prometheus.Registerer) {
	reg.MustRegister(m.streams, m.resumes, m.failures)
}
