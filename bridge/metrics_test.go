package bridge

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// docs/metrics.md lists every metric, as the program describes it.
func TestMetricsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg).watch(reg, &Bridge{nc: &nats.Conn{}})
	watches := watch.NewGroup(watch.Limits{}, zap.NewNop())
	watch.NewMetrics(reg)
	reg.MustRegister(watches)
	list := &toolscache.ListWatch{ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return &metav1.List{}, nil }}
	if _, err := watches.Add(list, watch.Options{}).ListWithContext(t.Context(), metav1.ListOptions{}); err != nil { // its age shows from then on
		t.Fatal(err)
	}
	suite.MetricsTable(t, filepath.Join("..", "docs", "metrics.md"), "| --- | --- |\n", reg, *apptest.Update)
}
