// Package kubesuite is what the packages of tests on an API server have in common.
package kubesuite

import (
	"context"
	"sync"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Cluster is started by its first user and shared by all tests of a package. The zero value
// is one that is not started.
type Cluster struct {
	once    sync.Once
	cluster *testenv.Cluster
	err     error
}

// Get is the cluster, or the end of the test.
func (c *Cluster) Get(tb testing.TB) *testenv.Cluster {
	tb.Helper()
	Needed(tb)
	c.once.Do(func() { c.cluster, c.err = testenv.Start(context.Background(), testenv.Options{}) })
	if c.err != nil {
		tb.Fatal(c.err)
	}
	return c.cluster
}

// Needed skips a test that needs an API server under -short, which `make test-unit` sets and
// `make test` does not.
func Needed(tb testing.TB) {
	tb.Helper()
	suite.Slow(tb, "needs an API server")
}

// Stop stops the cluster, if there is one.
func (c *Cluster) Stop() error {
	if c.cluster == nil {
		return nil
	}
	return c.cluster.Stop()
}
