package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	bulkApps = 24
	// bulkSize is what a specification takes. Two fit into no event once
	// max_payload is smallPayload.
	bulkSize = 32 << 10
)

// bulk are apps with large specifications, which change only while a fault wants
// a large bucket or large events.
type bulk struct {
	cluster *testenv.Cluster
	rng     *rand.Rand
	apps    []*liveApp
}

func newBulk(c *testenv.Cluster, seed uint64) *bulk {
	b := &bulk{cluster: c, rng: rand.New(rand.NewPCG(seed, writers))}
	for n := range bulkApps {
		b.apps = append(b.apps, &liveApp{app: testenv.App{
			Project: "bulk", Domain: []string{"development", "production"}[n%2], Name: fmt.Sprintf("bulk-%02d", n),
			Env: map[string]string{"BULK": strings.Repeat(fmt.Sprintf("%02d bulk ", n), bulkSize/8)},
		}})
	}
	return b
}

// touch changes every app once, and creates those that are missing. What cannot
// be written is not there for a fault to meet, and no more.
func (b *bulk) touch(ctx context.Context) {
	for _, a := range b.apps {
		b.write(ctx, a)
	}
}

func (b *bulk) write(ctx context.Context, a *liveApp) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if a.exists {
		err := annotate(limit, b.cluster, a.app.Service(), b.rng.Uint64())
		a.exists = !apierrors.IsNotFound(err)
		return
	}
	_, err := b.cluster.Create(limit, a.app)
	a.exists = err == nil || apierrors.IsAlreadyExists(err)
}

// remove deletes some apps.
func (b *bulk) remove(ctx context.Context, n int) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	for range n {
		a := b.apps[b.rng.IntN(len(b.apps))]
		if err := b.cluster.Delete(limit, a.app.Service()); err == nil || apierrors.IsNotFound(err) {
			a.exists = false
		}
	}
}

// keep changes some apps now and then for a time.
func (b *bulk) keep(ctx context.Context, length time.Duration) error {
	for end := time.Now().Add(length); time.Now().Before(end); {
		for range 3 {
			b.write(ctx, b.apps[b.rng.IntN(len(b.apps))])
		}
		if err := testenv.Pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
