package bridge

import (
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// docs/metrics.md lists every metric, as the program describes it.
func TestMetricsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg).watch(reg, &Bridge{nc: &nats.Conn{}})
	suite.MetricsTable(t, filepath.Join("..", "docs", "metrics.md"), "| --- | --- |\n", reg, *update)
}
