// The definitions of PodMonitor and PrometheusRule, for the tests of the chart. No code of it is
// built.
module github.com/appbridge/appbridge/ci/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
