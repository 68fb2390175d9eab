package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// quietApps is how many apps change only where a fault changes them: what a mute fault
// hides of them stays hidden until a bridge finds it.
const quietApps = 12

// quiet are those apps.
type quiet struct {
	cluster *testenv.Cluster

	mu     sync.Mutex
	free   []testenv.App
	next   int
	number uint64
}

func newQuiet(c *testenv.Cluster) *quiet { return &quiet{cluster: c} }

// create makes them, each with a Revision that is ready.
func (q *quiet) create(ctx context.Context) error {
	for range quietApps {
		app, err := q.add(ctx)
		if err != nil {
			return err
		}
		q.give(app)
	}
	return nil
}

// name is an app that never was.
func (q *quiet) name() testenv.App {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next++
	return testenv.App{Project: "quiet", Domain: "production", Name: fmt.Sprintf("quiet-%04d", q.next)}
}

// add creates one more.
func (q *quiet) add(ctx context.Context) (testenv.App, error) {
	app := q.name()
	return app, q.make(ctx, app)
}

func (q *quiet) make(ctx context.Context, app testenv.App) error {
	if _, err := q.cluster.Create(ctx, app); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err := q.cluster.Ready(ctx, app.Service(), "", 1)
	return err
}

// take takes one for a fault alone.
func (q *quiet) take(rng *rand.Rand) (testenv.App, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.free) == 0 {
		return testenv.App{}, errors.New("no quiet app is free")
	}
	at := rng.IntN(len(q.free))
	app := q.free[at]
	q.free = append(q.free[:at], q.free[at+1:]...)
	return app, nil
}

// give gives one back.
func (q *quiet) give(app testenv.App) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free = append(q.free, app)
}

// touch changes an app.
func (q *quiet) touch(ctx context.Context, app testenv.App) error {
	q.mu.Lock()
	q.number++
	number := q.number
	q.mu.Unlock()
	return annotate(ctx, q.cluster, app.Service(), number)
}

// renew makes an app whole again after a fault that deleted it, or its Revision, and
// gives it back. What cannot be made stays out of use.
func (q *quiet) renew(ctx context.Context, app testenv.App) {
	if q.make(ctx, app) == nil {
		q.give(app)
	}
}

func keyOfApp(app testenv.App) string {
	key, err := app.ID().Key()
	if err != nil {
		panic(err) // a mistake of the harness
	}
	return key
}
