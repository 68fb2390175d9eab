package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	writers = 4
	burst   = 30
	// A write that takes longer has met a fault.
	writeTimeout = 5 * time.Second
)

// load is those who change apps: a few writers, each with apps of its own.
// They need not know what became of a change: the truth is what etcd has.
type load struct {
	w       *world
	writers []*writer
	bulk    *bulk
	cancel  context.CancelFunc
	ending  sync.WaitGroup

	gate     sync.RWMutex // held for writing: nobody writes
	attempts atomic.Int64
	refused  atomic.Int64
}

// writer changes some apps, one change after the other.
type writer struct {
	load *load
	rng  *rand.Rand
	apps []*liveApp
}

// liveApp is an app that is changed, as its writer believes it to be.
type liveApp struct {
	app       testenv.App
	exists    bool
	unmanaged bool
	version   int // of its image
}

func newLoad(w *world) *load {
	l := &load{w: w, bulk: newBulk(w.cluster, w.cfg.seed), cancel: func() {}}
	for i := range writers {
		l.writers = append(l.writers, &writer{load: l, rng: rand.New(rand.NewPCG(w.cfg.seed, uint64(i)))})
	}
	for i := range w.cfg.apps {
		wr := l.writers[i%writers]
		wr.apps = append(wr.apps, &liveApp{app: appNumber(i)})
	}
	return l
}

// appNumber is one of the apps: in several projects and domains, every fifth
// with a name that is no subject token as it stands.
func appNumber(i int) testenv.App {
	project := []string{"shop", "vision", "risk"}[i%3]
	domain := []string{"development", "production"}[i%2]
	app := testenv.App{
		Project: project, Domain: domain, Name: fmt.Sprintf("app-%04d", i),
		Args: []string{"--listen", ":8080"}, Env: map[string]string{"LEVEL": "info"},
	}
	if i%5 == 0 {
		app.Name = fmt.Sprintf("app.%04d v%d", i, i%7)
		app.ObjectName = fmt.Sprintf("app-%04d-%s-%s", i, project, domain)
	}
	return app
}

// start has the writers write.
func (l *load) start() {
	stopped, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for _, wr := range l.writers {
		l.ending.Go(func() { wr.run(stopped) })
	}
}

// stop ends the writers for good.
func (l *load) stop() {
	l.cancel()
	l.ending.Wait()
}

// pause returns when no writer is writing; call the result to go on.
func (l *load) pause() (resume func()) {
	l.gate.Lock()
	return l.gate.Unlock
}

// run writes at the rate of the settings, without catching up after a time in
// which nothing could be written.
func (wr *writer) run(ctx context.Context) {
	tick := time.NewTicker(time.Second * writers / time.Duration(wr.load.w.cfg.rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wr.load.gate.RLock()
		err := wr.act(ctx)
		wr.load.gate.RUnlock()
		if err != nil && ctx.Err() == nil {
			wr.load.refused.Add(1)
			_ = testenv.Pause(ctx, 100*time.Millisecond)
		}
	}
}

// action is something that happens to an app.
type action struct {
	weight int
	do     func(*writer, context.Context, *testenv.Cluster, *liveApp) error
}

// toExisting happens to apps that are there.
var toExisting = []action{
	{10, (*writer).progressing},
	{14, (*writer).ready},
	{6, (*writer).failed},
	{30, (*writer).annotate},
	{14, (*writer).scale},
	{10, (*writer).pod},
	{3, (*writer).stopApp},
	{5, (*writer).deploy},
	{3, (*writer).toggleLabel},
	{4, (*writer).remove},
	{3, (*writer).recreate},
	{1, (*writer).burst},
}

// act chooses an app and what happens to it. What is begun is not broken off.
func (wr *writer) act(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	s := wr.apps[wr.rng.IntN(len(wr.apps))]
	wr.load.attempts.Add(1)
	if !s.exists {
		return wr.create(ctx, wr.load.w.cluster, s)
	}
	total := 0
	for _, a := range toExisting {
		total += a.weight
	}
	at := wr.rng.IntN(total)
	for _, a := range toExisting {
		if at -= a.weight; at < 0 {
			return wr.settle(s, a.do(wr, ctx, wr.load.w.cluster, s))
		}
	}
	return nil
}

// settle brings what is believed of an app in line with an answer.
func (wr *writer) settle(s *liveApp, err error) error {
	if apierrors.IsNotFound(err) {
		s.exists, s.unmanaged = false, false
		return nil
	}
	return err
}

func (wr *writer) create(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	_, err := c.Create(ctx, s.app)
	if err == nil || apierrors.IsAlreadyExists(err) {
		s.exists, s.unmanaged = true, false
		return nil
	}
	return err
}

func (wr *writer) progressing(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	_, err := c.Progressing(ctx, s.app.Service())
	return err
}

func (wr *writer) ready(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	_, err := c.Ready(ctx, s.app.Service(), "", int32(wr.rng.IntN(4)))
	return err
}

func (wr *writer) failed(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	_, err := c.Failed(ctx, s.app.Service(), "RevisionFailed", fmt.Sprintf("Container exited with code %d.", wr.rng.IntN(250)))
	return err
}

func (wr *writer) annotate(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	return annotate(ctx, c, s.app.Service(), wr.rng.Uint64())
}

// annotate is the smallest change: a new version that says nothing new.
func annotate(ctx context.Context, c *testenv.Cluster, svc *servingv1.Service, value uint64) error {
	_, err := c.Patch(ctx, svc, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"example.com/touched": fmt.Sprint(value)}},
	})
	return err
}

func (wr *writer) scale(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	replicas := int32(wr.rng.IntN(6))
	if _, err := c.Scale(ctx, s.app.Service(), replicas); err != nil {
		// Nothing is ready yet, or its Revision is gone.
		_, err = c.Ready(ctx, s.app.Service(), "", replicas)
		return err
	}
	return nil
}

func (wr *writer) stopApp(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	if wr.rng.IntN(2) == 0 {
		_, err := c.MarkStopped(ctx, s.app.Service())
		return err
	}
	_, err := c.StopApp(ctx, s.app.Service())
	return err
}

// deploy gives the app another image, and starts it if it was stopped.
func (wr *writer) deploy(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	s.version++
	s.app.Image = fmt.Sprintf("registry.example.com/%s:%d", s.app.Project, s.version)
	_, err := c.Redeploy(ctx, s.app)
	if err == nil {
		s.unmanaged = false // a deploy writes the label as well
	}
	return err
}

// toggleLabel takes the app out of Flyte's hands, or gives it back.
func (wr *writer) toggleLabel(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	value := ""
	if s.unmanaged {
		value = "true"
	}
	_, err := c.SetLabel(ctx, s.app.Service(), kservice.LabelManaged, value)
	if err == nil {
		s.unmanaged = !s.unmanaged
	}
	return err
}

func (wr *writer) remove(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	err := c.Delete(ctx, s.app.Service())
	if err == nil {
		s.exists, s.unmanaged = false, false
	}
	return err
}

func (wr *writer) recreate(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	if err := wr.remove(ctx, c, s); err != nil {
		return err
	}
	return wr.create(ctx, c, s)
}

// burst changes one app as fast as the API server takes it.
func (wr *writer) burst(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	for range burst {
		if err := wr.annotate(ctx, c, s); err != nil {
			return err
		}
	}
	return nil
}
