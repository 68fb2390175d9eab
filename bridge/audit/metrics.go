package audit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	m := &Metrics{
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_audit_rounds_total", Help: "Rounds of the audit, by result: complete or interrupted.",
		}, []string{"result"}),
		findings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_audit_findings_total", Help: "Differences that two looks of the audit agreed on, by kind and by the side that is wrong.",
		}, []string{"kind", "side"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_audit_repairs_total", Help: "Findings of the audit that a later look found repaired, by kind.",
		}, []string{"kind"}),
		suspects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "appbridge_audit_suspects_total", Help: "Apps, keys and objects that the audit looked at in full.",
		}),
		seconds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "appbridge_audit_seconds_total", Help: "Time the audit spent on its rounds, without its pauses.",
		}),
	}
	m.rounds.WithLabelValues(resultComplete)
	m.rounds.WithLabelValues(resultInterrupted)
	gauge := func(name, help string, value func(*Auditor) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if a := auditor(); a != nil {
				return value(a)
			}
			return 0
		})
	}
	reg.MustRegister(m.rounds, m.findings, m.repairs, m.suspects, m.seconds,
		gauge("appbridge_audit_last_complete_age_seconds",
			"Age of the last complete round of the audit, or of the audit itself before the first; 0 if it is off.",
			func(a *Auditor) float64 { return time.Since(a.lastComplete()).Seconds() }),
		gauge("appbridge_audit_unrepaired", "Findings of the audit that are to be repaired and are not yet.",
			func(a *Auditor) float64 { n, _ := a.Unrepaired(); return float64(n) }))
	return m
}
