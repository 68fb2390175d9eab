// Package machinery tests package testdata/testenv/knative on Knative itself: what other tests
// rely on when they watch our programs beside it. `make knative-test` runs it.
package machinery

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/knative"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// limit bounds a wait for what takes a second on an idle machine.
const limit = 3 * time.Minute

// world is a cluster with Knative that the tests share. Each has a namespace's names of its own.
var world struct {
	once    sync.Once
	cluster *testenv.Cluster
	knative *knative.Knative
	err     error
}

func TestMain(m *testing.M) {
	suite.Main(m, stopWorld, goleak.IgnoreCurrent())
}

func start(t *testing.T) (*testenv.Cluster, *knative.Knative) {
	t.Helper()
	world.once.Do(func() {
		ctx := context.Background() // it outlives the test
		if world.cluster, world.err = testenv.Start(ctx, testenv.Options{}); world.err == nil {
			world.knative, world.err = knative.Start(ctx, world.cluster, knative.Options{})
		}
	})
	if world.err != nil {
		t.Fatal(world.err)
	}
	k := world.knative
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.Logs())
		}
	})
	return world.cluster, k
}

func stopWorld() error {
	var errs []error
	if world.knative != nil {
		errs = append(errs, world.knative.Stop())
	}
	if world.cluster != nil {
		errs = append(errs, world.cluster.Stop())
	}
	return errors.Join(errs...)
}

// eventually polls an object until the check of it returns nil.
func eventually[T client.Object](t *testing.T, c *testenv.Cluster, object T, what string, check func(T) error) {
	t.Helper()
	suite.Eventually(t, limit, what, func() error {
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		return check(object)
	})
}
