package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/services"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/knative"
)

// onKnative is Knative: its controllers take the services where they are to go. The story says
// what is deployed, and how many replicas the load asks for.
type onKnative struct {
	cluster *testenv.Cluster
	knative *knative.Knative
	history *testenv.History
}

// What Knative labels Revisions and pods with.
const (
	labelService  = "serving.knative.dev/service"
	labelRevision = "serving.knative.dev/revision"
)

// shortestWindow is the shortest time without requests that Knative takes.
const shortestWindow = 6 * time.Second

// Registries of the samples: Knative takes images of the first as they are; nobody runs the other.
const (
	exampleRegistry = "registry.example.com"
	missingRegistry = "127.0.0.1:1"
)

func startKnative(ctx context.Context, cluster *testenv.Cluster, out *screen) (*onKnative, error) {
	out.heading("Starting Knative: its controllers and its webhook, kube-controller-manager and kwok")
	history, err := cluster.History(ctx, testenv.DefaultNamespace)
	if err != nil {
		return nil, err
	}
	k, err := knative.Start(ctx, cluster, knative.Options{Settings: map[string]map[string]string{
		"config-deployment": {"registries-skipping-tag-resolving": exampleRegistry},
	}})
	if err != nil {
		return nil, errors.Join(err, history.Stop())
	}
	return &onKnative{cluster: cluster, knative: k, history: history}, nil
}

func (k *onKnative) stop() error { return errors.Join(k.knative.Stop(), k.history.Stop()) }

// samples are those of every stage. The image that is not there is one of a registry that nobody
// runs, so that Knative finds out by itself, without the network. The last replica goes after
// seconds instead of minutes.
func (k *onKnative) samples() ([]*servingv1.Service, error) {
	all, err := services.All()
	if err != nil {
		return nil, err
	}
	for i, svc := range all {
		app, err := testenv.AppOf(svc)
		if err != nil {
			return nil, err
		}
		if container := app.Spec.GetContainer(); strings.HasSuffix(container.GetImage(), ":not-there") {
			container.Image = strings.Replace(container.GetImage(), exampleRegistry, missingRegistry, 1)
		}
		app.Spec.GetAutoscaling().ScaledownPeriod = durationpb.New(shortestWindow)
		all[i] = app.Service()
	}
	return all, nil
}

func (k *onKnative) story(t *tour) []step {
	on := func(app string) reconciled { return reconciled{chapter{t: t, app: app}} }
	store, rec, churn, score := on("storefront"), on("recommender"), on("churn-dashboard"), on("score.v2")
	const newImage = "registry.example.com/shop/storefront:1.5.0"
	return []step{
		store.reaches(store.applied(), active, 1), store.reaches(store.scales(3), active, 3),
		store.reaches(store.scales(0), active, 0), store.reaches(store.scales(1), active, 1),

		rec.reaches(rec.applied(), failed, 0),

		churn.reaches(churn.applied(), active, 1), churn.reaches(churn.isStopped(), stopped, 0),

		score.reaches(score.applied(), active, 1), score.ends(score.isDeleted(active)),
		score.reaches(score.applied(), active, 1),

		store.rollsOut(store.reaches(store.getsImage(newImage, 1), active, 1)), store.reaches(store.scales(shopReplicas), active, shopReplicas),

		rec.ends(rec.isUndeployed(failed)),
	}
}

// reconciled makes steps of one app that Knative takes further.
type reconciled struct{ chapter }

// reaches is a step after which Knative takes the app to a state.
func (r reconciled) reaches(s step, status string, replicas uint32) step {
	s.want, s.goal = nil, &want{kind: subjects.Updated, status: status, replicas: replicas}
	return s
}

// rollsOut is a step whose goal is reached by the app's second Revision: what its first one serves
// is as well until then.
func (r reconciled) rollsOut(s step) step {
	s.goal.revision = "00002"
	return s
}

// ends is a step after which the app is gone.
func (r reconciled) ends(s step) step {
	s.goal = &want{kind: subjects.Deleted}
	s.want = nil
	return s
}

// shownBy reports whether an event shows what is wanted. What an app was before its end is
// Knative's matter.
func (w want) shownBy(e event) bool {
	if w.kind == subjects.Deleted {
		return e.kind == subjects.Deleted
	}
	return seenAs(e) == want{kind: w.kind, status: w.status, replicas: w.replicas} && strings.HasSuffix(e.header.Get(subjects.HeaderRevision), w.revision)
}

// scale has the autoscaler see requests for so many replicas. The last one goes some seconds late.
func (k *onKnative) scale(ctx context.Context, svc *servingv1.Service, replicas int32) error {
	now := &servingv1.Service{}
	if err := k.cluster.Client.Get(ctx, client.ObjectKeyFromObject(svc), now); err != nil {
		return fmt.Errorf("scale %s to %d: %w", svc.Name, replicas, err)
	}
	return k.knative.Load(ctx, svc.Namespace, now.Status.LatestReadyRevisionName, int(replicas))
}

// replicas are the pods of the ready Revision. Those of an older one get an empty log: the log
// service reads them, too.
func (k *onKnative) replicas(ctx context.Context, svc *servingv1.Service) (running []*testenv.Pod, err error) {
	list := &corev1.PodList{}
	if err := k.cluster.Client.List(ctx, list, client.InNamespace(svc.Namespace), client.MatchingLabels{labelService: svc.Name}); err != nil {
		return nil, fmt.Errorf("list the replicas of %s: %w", svc.Name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		writer, err := k.knative.Pod(ctx, client.ObjectKeyFromObject(pod))
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil && pod.Labels[labelRevision] == svc.Status.LatestReadyRevisionName {
			running = append(running, writer)
		}
	}
	return running, nil
}

// checkEvents compares every event with every version of a Service and a Revision that etcd held:
// none is missing, none comes twice. Knative may still be at work on the last step.
func (k *onKnative) checkEvents(ctx context.Context, t *tour, out *screen) (failures []string, err error) {
	const patience = time.Minute
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		in, err := k.input(ctx, t)
		if err != nil {
			return nil, err
		}
		report := audit.Check(in)
		failures = nil
		for _, problem := range report.Problems() {
			failures = append(failures, problem.String())
		}
		if missing := report.Merged + report.Excused; missing > 0 {
			failures = append(failures, fmt.Sprintf("%d versions have no event", missing))
		}
		if len(failures) == 0 || testenv.Pause(limit, 10*bucketPoll) != nil {
			out.table(perApp(in))
			return failures, ctx.Err()
		}
	}
}

// input is everything that was published, and then everything that etcd held.
func (k *onKnative) input(ctx context.Context, t *tour) (audit.Input, error) {
	in := audit.Input{
		Subjects: t.events.names, Bucket: subjects.DefaultBucket, ClusterName: demoCluster, App: kservice.Config{BaseDomain: baseDomain},
	}
	bucket, err := t.events.js.Stream(ctx, subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		return in, err
	}
	for _, app := range sortedNames(t.ids) {
		key, err := t.ids[app].Key()
		if err != nil {
			return in, err
		}
		msg, err := bucket.GetLastMsgForSubject(ctx, subjects.BucketSubject(subjects.DefaultBucket, key))
		if err != nil {
			return in, fmt.Errorf("read the bucket: %w", err)
		}
		in.Entries = append(in.Entries, audit.Message{Subject: msg.Subject, Sequence: msg.Sequence, Header: msg.Header, Data: msg.Data, Stored: msg.Time})
	}
	for _, e := range t.events.all() {
		in.Events = append(in.Events, audit.Message{Subject: e.subject, Sequence: e.sequence, Header: e.header, Data: e.data, Stored: e.time})
	}
	list := &servingv1.ServiceList{}
	if err := k.cluster.Client.List(ctx, list, client.InNamespace(testenv.DefaultNamespace), client.Limit(1)); err != nil {
		return in, err
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return in, err
	}
	if err := k.history.WaitFor(ctx, revision); err != nil {
		return in, err
	}
	for _, change := range k.history.Changes() {
		in.Changes = append(in.Changes, audit.Change(change))
	}
	return in, nil
}

// perApp counts both sides.
func perApp(in audit.Input) [][]string {
	versions, revisions, events := map[string]int{}, map[string]int{}, map[string]int{}
	names := map[string]string{} // of Services, by uid
	for _, change := range in.Changes {
		if change.Kind == audit.KindRevision {
			revisions[change.Object.GetLabels()[labelService]]++
			continue
		}
		versions[change.Name]++
		names[string(change.UID)] = change.Name
	}
	for _, e := range in.Events {
		events[names[e.Header.Get(subjects.HeaderUID)]]++
	}
	rows := [][]string{{"Knative Service", "versions in etcd", "of its Revisions", "events"}}
	for _, name := range sortedNames(versions) {
		rows = append(rows, []string{name, strconv.Itoa(versions[name]), strconv.Itoa(revisions[name]), strconv.Itoa(events[name])})
	}
	return rows
}
