package watch

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of requests to Kubernetes.
type Metrics struct {
	watchErrors prometheus.Counter
	errors      prometheus.Counter
	reachable   prometheus.Gauge
	watches     prometheus.Gauge
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return promauto.With(reg).NewCounter(prometheus.CounterOpts{Name: "appbridge_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: "appbridge_" + name, Help: help})
	}
	return &Metrics{
		watchErrors: counter("watch_errors_total", "Lists and watches that the Kubernetes API refused or broke off."),
		errors:      counter("kubernetes_errors_total", "Requests that did not reach the Kubernetes API or brought no answer."),
		reachable:   gauge("kubernetes_reachable", "1 if the last request to the Kubernetes API was answered, else 0."),
		watches:     gauge("kubernetes_watches", "Watches on the Kubernetes API that are open: two for each watched namespace, three with --pod-conditions."),
	}
}
