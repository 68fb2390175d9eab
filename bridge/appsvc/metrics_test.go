package appsvc

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var update = flag.Bool("update", false, "write what is compared") //nolint:gochecknoglobals // a flag of the test

// docs/metrics.md lists every metric, as the program describes it.
func TestMetricsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg, newLimits(Config{MaxReads: 1, MaxWrites: 1}))
	suite.MetricsTable(t, filepath.Join("..", "..", "docs", "metrics.md"), "## Of the app operations\n\n| metric | meaning |\n| --- | --- |\n", reg, *update)
}
