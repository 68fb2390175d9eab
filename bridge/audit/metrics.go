package audit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Results of a round.
const (
	resultComplete    = "complete"
	resultInterrupted = "interrupted"
)

// Metrics of an Auditor.
type Metrics struct {
	rounds   *prometheus.CounterVec
	findings *prometheus.CounterVec
	repairs  *prometheus.CounterVec
	suspects prometheus.Counter
	seconds  prometheus.Counter
}

// NewMetrics makes the metrics and registers them. The gauges are of auditor(), which may be nil.
func NewMetrics(reg prometheus.Registerer, auditor func() *Auditor) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return promauto.With(reg).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		rounds:   counter("appbridge_audit_rounds_total", "Rounds of the audit, by result: complete or interrupted.", "result"),
		findings: counter("appbridge_audit_findings_total", "Differences that two looks of the audit agreed on, by kind and by the side that is wrong.", "kind", "side"),
		repairs:  counter("appbridge_audit_repairs_total", "Findings of the audit that a later look found repaired, by kind.", "kind"),
		suspects: counter("appbridge_audit_suspects_total", "Apps, keys and objects that the audit looked at in full.").WithLabelValues(),
		seconds:  counter("appbridge_audit_seconds_total", "Time the audit spent on its rounds, without its pauses.").WithLabelValues(),
	}
	m.rounds.WithLabelValues(resultComplete)
	m.rounds.WithLabelValues(resultInterrupted)
	gauge := func(name, help string, value func(*Auditor) float64) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if a := auditor(); a != nil {
				return value(a)
			}
			return 0
		})
	}
	gauge("appbridge_audit_last_complete_age_seconds",
		"Age of the last complete round of the audit, or of the audit itself before the first; 0 if it is off.",
		func(a *Auditor) float64 { return time.Since(a.lastComplete()).Seconds() })
	gauge("appbridge_audit_unrepaired", "Findings of the audit that are to be repaired and are not yet.",
		func(a *Auditor) float64 { n, _ := a.Unrepaired(); return float64(n) })
	return m
}
