package main

import (
	"context"
	"fmt"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/services"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The statuses of the story, as statusOf gives them.
const (
	none    = "none"
	pending = "PENDING"
	active  = "ACTIVE"
	failed  = "FAILED"
	stopped = "STOPPED"
)

// played is an API server alone: the story writes what Knative's controllers
// would write, and runs pods on a node that this process stands in for.
type played struct {
	cluster *testenv.Cluster
	kubelet *testenv.Kubelet
	shop    []*testenv.Pod
}

func play(ctx context.Context, cluster *testenv.Cluster) (*played, error) {
	kubelet, err := cluster.StartKubelet(ctx, "node")
	return &played{cluster: cluster, kubelet: kubelet}, err
}

func (p *played) stop() error { return p.kubelet.Close() }

func (p *played) samples() ([]*servingv1.Service, error) { return services.All() }

func (p *played) scale(ctx context.Context, svc *servingv1.Service, replicas int32) error {
	_, err := p.cluster.Scale(ctx, svc, replicas)
	return err
}

// replicas starts two pods the first time.
func (p *played) replicas(ctx context.Context, svc *servingv1.Service) ([]*testenv.Pod, error) {
	revision := svc.Status.LatestReadyRevisionName
	for _, name := range []string{"-deployment-6c9f8-kx2vp", "-deployment-6c9f8-q9wzt"}[len(p.shop):] {
		pod, err := p.kubelet.RunPod(ctx, testenv.PodOptions{
			Namespace: svc.Namespace, Name: revision + name, Service: svc.Name, Revision: revision,
		})
		if err != nil {
			return nil, fmt.Errorf("run a replica of %s: %w", svc.Name, err)
		}
		p.shop = append(p.shop, pod)
	}
	return p.shop, nil
}

// story is what happens. A Revision becomes ready with no replicas and is
// scaled after that, as two changes: were they one, the order in which the API
// server tells of the Service and of its Revision would decide whether there
// are one or two events.
func (p *played) story(t *tour) []step {
	on := func(app string) chapter { return chapter{t: t, app: app} }
	store, rec, churn, score := on("storefront"), on("recommender"), on("churn-dashboard"), on("score.v2")
	const newImage = "registry.example.com/shop/storefront:1.5.0"
	return []step{
		store.applied(), store.progresses(0), store.becomesReady(),
		store.scales(3), store.scales(0), store.scales(1),

		rec.applied(), rec.progresses(0),
		rec.fails("RevisionFailed", `Unable to fetch image "registry.example.com/shop/recommender:not-there": not found`),

		churn.applied(), churn.progresses(0), churn.becomesReady(), churn.scales(1),
		churn.isStopped(),

		score.applied(), score.progresses(0), score.becomesReady(), score.isDeleted(active),
		score.applied(), score.progresses(0), score.becomesReady(), score.scales(1),

		store.getsImage(newImage, 1), store.progresses(1), store.becomesReady(), store.scales(shopReplicas),

		rec.isUndeployed(failed),
	}
}

// chapter makes steps of one app.
type chapter struct {
	t   *tour
	app string
}

func (c chapter) applied() step {
	return step{
		app: c.app, says: "applied", change: c.t.apply,
		want: &want{kind: subjects.Created, status: none},
	}
}

func (c chapter) progresses(replicas uint32) step {
	return step{
		app: c.app, says: "Knative works on its newest Revision",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return k.Progressing(ctx, svc)
		},
		want: &want{kind: subjects.Updated, status: pending, replicas: replicas},
	}
}

func (c chapter) becomesReady() step {
	return step{
		app: c.app, says: "ready",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return k.Ready(ctx, svc, "", 0)
		},
		want: &want{kind: subjects.Updated, status: active},
	}
}

func (c chapter) scales(replicas uint32) step {
	says := fmt.Sprintf("scaled to %d", replicas)
	if replicas == 0 {
		says = "scaled to zero"
	}
	return step{
		app: c.app, says: says,
		change: func(ctx context.Context, _ *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return nil, c.t.stage.scale(ctx, svc, int32(replicas))
		},
		want: &want{kind: subjects.Updated, status: active, replicas: replicas},
	}
}

func (c chapter) fails(reason, message string) step {
	return step{
		app: c.app, says: "its Revision fails",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return k.Failed(ctx, svc, reason, message)
		},
		want: &want{kind: subjects.Updated, status: failed},
	}
}

func (c chapter) isStopped() step {
	return step{
		app: c.app, says: "stopped, by a request over NATS; its Revision goes, too, which changes nothing more",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return c.t.operates(ctx, k, subjects.APIStop, svc, &appv1.UpdateRequest{})
		},
		want: &want{kind: subjects.Updated, status: stopped},
	}
}

func (c chapter) isUndeployed(status string) step {
	return step{
		app: c.app, says: "deleted, by a request over NATS",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return c.t.operates(ctx, k, subjects.APIDelete, svc, &appv1.DeleteRequest{})
		},
		want: &want{kind: subjects.Deleted, status: status},
	}
}

func (c chapter) isDeleted(status string) step {
	return step{
		app: c.app, says: "deleted",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			return nil, k.Delete(ctx, svc)
		},
		want: &want{kind: subjects.Deleted, status: status},
	}
}

func (c chapter) getsImage(image string, replicas uint32) step {
	return step{
		app: c.app, says: "deployed with another image, by a request over NATS",
		change: func(ctx context.Context, k *testenv.Cluster, svc *servingv1.Service) (*servingv1.Service, error) {
			app, err := testenv.AppOf(svc)
			if err != nil {
				return nil, err
			}
			app.Spec.GetContainer().Image = image
			return c.t.operates(ctx, k, subjects.APIDeploy, svc, &appv1.CreateRequest{App: &appv1.App{Spec: app.Spec}})
		},
		want: &want{kind: subjects.Updated, status: active, replicas: replicas, image: image},
	}
}
