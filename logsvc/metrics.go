package logsvc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics of a Service; docs/metrics.md lists them.
type metrics struct {
	requests    *prometheus.CounterVec
	lines       prometheus.Counter
	bytes       prometheus.Counter
	dropped     prometheus.Counter
	cut         prometheus.Counter
	resent      prometheus.Counter
	undelivered prometheus.Counter // lines
	firstLine   prometheus.Histogram
}

// newMetrics registers them; streams returns how many requests are served, of at most limit.
func newMetrics(reg prometheus.Registerer, streams func() float64, limit int) *metrics {
	register := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return register.NewCounter(prometheus.CounterOpts{Name: "appbridge_log_" + name, Help: help})
	}
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "appbridge_log_streams", Help: "Log requests that are served at this moment.",
	}, streams)
	register.NewGauge(prometheus.GaugeOpts{
		Name: "appbridge_log_streams_limit", Help: "Log requests that may be served at one time.",
	}).Set(float64(limit))
	return &metrics{
		requests: register.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_log_requests_total", Help: "Log requests that have ended, by operation and by how: the end's reason, gone, or the name of the error.",
		}, []string{"op", "result"}),
		lines:       counter("lines_total", "Lines of logs that were sent."),
		bytes:       counter("bytes_total", "Bytes of messages with lines that were sent."),
		dropped:     counter("lines_dropped_total", "Lines that were dropped because a reader or its expressions were too slow."),
		cut:         counter("lines_cut_total", "Lines that were too long and lost their end."),
		resent:      counter("messages_resent_total", "Messages that were sent again because a reader did not acknowledge them."),
		undelivered: counter("lines_undelivered_total", "Lines that were sent while nobody listened, as the NATS server reported, to readers that do not acknowledge."),
		firstLine: register.NewHistogram(prometheus.HistogramOpts{
			Name: "appbridge_log_first_line_seconds", Help: "Time from a request to its first line.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 15),
		}),
	}
}
