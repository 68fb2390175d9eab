package main

import (
	"context"
	"fmt"
	"time"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// baseDomain is where the demo's apps would be reached.
const baseDomain = "apps.example.com"

// What happens after the tour: requests that the shop logs, and now and then
// another number of replicas.
const (
	requestInterval = 2 * time.Second
	scaleInterval   = 10 * time.Second
)

// want is what one change must look like in the stream.
type want struct {
	kind     subjects.EventKind
	status   string
	replicas uint32
	image    string // empty: as before
	revision string // the end of the name of the one that gives the replicas; empty: any
}

func (w want) String() string {
	return fmt.Sprintf("%s %s %d", w.kind, w.status, w.replicas)
}

// step is one change in the cluster and the event that it must bring. A step
// without an event must bring none.
type step struct {
	app    string
	says   string
	change func(ctx context.Context, c *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error)
	want   *want
	// goal is where Knative is to take the app, by as many events as it takes.
	goal *want
}

// stage is what the story takes place on: an API server alone, or Knative.
type stage interface {
	// samples are the services of the story, by themselves.
	samples() ([]*servingv1.Service, error)
	story(t *tour) []step
	// replicas run the ready Revision of a service, as they are now.
	replicas(ctx context.Context, svc *servingv1.Service) ([]*testenv.Pod, error)
	scale(ctx context.Context, svc *servingv1.Service, replicas int32) error
	// checkEvents compares the events with what was caused, and prints both.
	checkEvents(ctx context.Context, t *tour, out *screen) (failures []string, err error)
	stop() error
}

// tour moves the sample services through their lives.
type tour struct {
	stage   stage
	cluster *testenv.Cluster
	events  *watcher
	out     *screen
	pace    time.Duration

	samples map[string]*servingv1.Service // as applied, by app name
	current map[string]*servingv1.Service // as stored last
	ids     map[string]subjects.AppID
	wants   map[string][]want // what was caused so far
	looked  map[string]int    // events of each app up to its last goal
}

func newTour(on stage, cluster *testenv.Cluster, events *watcher, out *screen, pace time.Duration) (*tour, error) {
	t := &tour{
		stage: on, cluster: cluster, events: events, out: out, pace: pace,
		samples: map[string]*servingv1.Service{},
		current: map[string]*servingv1.Service{},
		ids:     map[string]subjects.AppID{},
		wants:   map[string][]want{},
		looked:  map[string]int{},
	}
	all, err := on.samples()
	if err != nil {
		return nil, err
	}
	for _, svc := range all {
		app, err := testenv.AppOf(svc)
		if err != nil {
			return nil, err
		}
		id := app.ID()
		t.samples[id.Name], t.current[id.Name], t.ids[id.Name] = svc, svc, id
	}
	return t, nil
}

// run takes every step of the story, each after the event of the one before.
func (t *tour) run(ctx context.Context) error {
	for _, s := range t.stage.story(t) {
		if err := t.take(ctx, s); err != nil {
			return fmt.Errorf("%s: %s: %w", s.app, s.says, err)
		}
	}
	return nil
}

func (t *tour) take(ctx context.Context, s step) error {
	if t.current[s.app] == nil {
		return fmt.Errorf("no sample service of that name")
	}
	t.out.action(s.app + ": " + s.says)
	stored, err := s.change(ctx, t.cluster, t.current[s.app])
	if err != nil {
		return err
	}
	if stored != nil {
		t.current[s.app] = stored
	}
	if s.want != nil {
		t.wants[s.app] = append(t.wants[s.app], *s.want)
		if err := t.events.await(ctx, t.ids[s.app], len(t.wants[s.app])); err != nil {
			return err
		}
	}
	if s.goal != nil {
		if t.looked[s.app], err = t.events.reach(ctx, t.ids[s.app], t.looked[s.app], *s.goal); err != nil {
			return err
		}
	}
	return testenv.Pause(ctx, t.pace)
}

// keepGoing has one app write its log and changes its replicas now and then,
// until the context ends, which is its only good end.
func (t *tour) keepGoing(ctx context.Context, shop *shopLog) error {
	const each = int(scaleInterval / requestInterval)
	for i := 1; ; i++ {
		if err := testenv.Pause(ctx, requestInterval); err != nil {
			return err
		}
		if err := t.serveShop(ctx, shop); err != nil {
			return err
		}
		if i%each != 0 {
			continue
		}
		replicas := []int32{3, 4, 1, 0, 2}[(i/each-1)%5]
		if err := t.stage.scale(ctx, t.current[shopApp], replicas); err != nil {
			return err
		}
	}
}

// apply creates a sample anew.
func (t *tour) apply(ctx context.Context, c *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
	for _, sample := range t.samples {
		if sample.Name == svc.Name {
			svc = sample.DeepCopy()
		}
	}
	if err := c.Client.Create(ctx, svc); err != nil {
		return nil, fmt.Errorf("create %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	return svc, nil
}
