package appsvc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The keys that a version of a Knative Service is judged by, spelled out.
const (
	keyAppID      = "flyte.org/app-id"
	keySpecSHA    = "flyte.org/spec-sha"
	keyManaged    = "flyte.org/app-managed"
	keyProject    = "flyte.org/project"
	keyAppName    = "flyte.org/app-name"
	keyStopped    = "flyte.org/app-stopped"
	keyController = "controller.example.com/seen"
)

// wish is a request for an app, and its answer.
type wish struct {
	id      subjects.AppID
	version int
	answer  *siteAnswer
	open    bool // an earlier try had no result: it may have been written
}

// digest is what stands for the spec of an app as testenv, not kservice, reckons it.
func (s *site) digest(id subjects.AppID, version int) string {
	return s.app(id, version).Service().Annotations[keySpecSHA]
}

// consistent tells which app and which version of its spec an object is: its
// annotations, its labels and its pod spec must all say the same.
func (s *site) consistent(svc *servingv1.Service, ids map[string]subjects.AppID) (id subjects.AppID, version int, err error) {
	id, ok := ids[svc.Annotations[keyAppID]]
	if !ok {
		return id, 0, fmt.Errorf("its id is %q", svc.Annotations[keyAppID])
	}
	containers := svc.Spec.Template.Spec.Containers
	if len(containers) != 1 {
		return id, 0, fmt.Errorf("it has %d containers", len(containers))
	}
	for version = 1; containers[0].Image != siteImage(id, version); version++ {
		if version == 100 {
			return id, 0, fmt.Errorf("its image %s is none of %s", containers[0].Image, id)
		}
	}
	if got, want := svc.Annotations[keySpecSHA], s.digest(id, version); got != want {
		return id, 0, fmt.Errorf("its digest is %s, that of %s is %s", got, containers[0].Image, want)
	}
	for key, want := range map[string]string{keyManaged: "true", keyProject: id.Project, keyAppName: id.Name} {
		if got := svc.Labels[key]; got != want {
			return id, 0, fmt.Errorf("label %s of %s is %q, want %q", key, id, got, want)
		}
	}
	if got, want := svc.Name, kservice.Name(id); got != want {
		return id, 0, fmt.Errorf("%s is in %s, want %s", id, got, want)
	}
	return id, version, nil
}

// controller writes to Knative Services as Knative's would, and more often: status,
// a label and an annotation of its own. It is told the names and ends with ctx.
func (s *site) controller(ctx context.Context, names []string) error {
	for n := 1; ctx.Err() == nil; n++ {
		for _, name := range names {
			svc := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
			mark := strconv.Itoa(n)
			_, err := s.Patch(ctx, svc, map[string]any{"metadata": map[string]any{
				"labels": map[string]any{keyController: mark}, "annotations": map[string]any{keyController: mark},
			}})
			if err == nil {
				err = s.PatchStatus(ctx, svc, map[string]any{"observedGeneration": n})
			}
			if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return nil
}

// 500 deploys to two replicas at once, each app wanted in ten ways,
// while a controller writes to the same objects, and other apps are after some of the
// names.
func TestConcurrentDeploys(t *testing.T) {
	t.Parallel()
	const apps, versions, contested, clients, atATime, controllers = 50, 10, 10, 5, 500, 2
	s := newSite(t, cluster.Get(t), "", "")
	replicas := []*siteReplica{s.replica(siteConfig{name: "one"}), s.replica(siteConfig{name: "two"})}
	history, err := s.History(t.Context(), s.namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { mustDo(t, history.Stop()) }()

	var all []*wish
	var names []string
	ids := map[string]subjects.AppID{}
	add := func(id subjects.AppID) {
		ids[id.String()] = id
		for version := range versions {
			all = append(all, &wish{id: id, version: version + 1})
		}
	}
	for i := range apps {
		id := s.id("app-" + strconv.Itoa(i))
		names = append(names, kservice.Name(id))
		add(id)
		switch {
		case i >= contested:
		case i%2 == 0: // another hyphen divides name and project
			add(subjects.AppID{Project: strconv.Itoa(i) + "-shop", Domain: id.Domain, Name: "app"})
		default: // another case
			add(subjects.AppID{Project: id.Project, Domain: id.Domain, Name: "App-" + strconv.Itoa(i)})
		}
	}
	if got, want := len(ids), apps+contested; got != want {
		t.Fatalf("%d apps, want %d", got, want)
	}
	for block := range slices.Chunk(all, atATime) {
		rand.Shuffle(len(block), func(i, j int) { block[i], block[j] = block[j], block[i] })
	}

	working, end := context.WithCancel(t.Context())
	defer end()
	var others errgroup.Group
	for i := range controllers {
		part := len(names) / controllers
		others.Go(func() error { return s.controller(working, names[i*part:(i+1)*part]) })
	}
	began := time.Now()
	s.deploys(all, clients, atATime)
	took := time.Since(began)
	soon(t, "the controller has been everywhere", func() error {
		list := &servingv1.ServiceList{}
		mustDo(t, s.Client.List(t.Context(), list, client.InNamespace(s.namespace)))
		for i := range list.Items {
			if list.Items[i].Status.ObservedGeneration == 0 {
				return errNotYet
			}
		}
		return nil
	})
	end()
	mustDo(t, others.Wait())
	t.Logf("%d deploys of %d apps by %d replicas in %s: %.0f a second", len(all), apps, len(replicas), took.Round(time.Millisecond), float64(len(all))/took.Seconds())
	retries := 0.0
	for _, r := range replicas {
		retries += r.metric(t, "appbridge_api_write_retries_total")
	}
	t.Logf("%v writes were tried again", retries)
	if retries == 0 {
		t.Error("nobody got in anybody's way")
	}
	owner := s.judge(all)
	if got, want := len(owner), apps; got != want {
		t.Errorf("%d names are taken, want %d", got, want)
	}
	s.judgeHistory(history, all, ids, owner)
	s.judgeEnd(replicas, ids, owner)
}

// deploys makes all requests, so many at a time, by several connections. A request that Kubernetes
// did not answer in time is sent again, as a client would: the same again writes nothing.
func (s *site) deploys(all []*wish, clients, atATime int) {
	s.t.Helper()
	conns := make([]*nats.Conn, clients)
	for i := range conns {
		conns[i] = s.dial()
	}
	var asking errgroup.Group
	asking.SetLimit(atATime)
	for i, d := range all {
		asking.Go(func() (err error) {
			for {
				d.answer, err = s.op(conns[i%clients], subjects.APIDeploy, d.id, wanted(s.app(d.id, d.version)))
				if err != nil || !d.answer.late() {
					return err
				}
				d.open = true
			}
		})
	}
	mustDo(s.t, asking.Wait())
}

// judge checks the answers: every one is a success, but that one of two apps which
// are after the same name gets it, and all requests of the other are refused. It
// returns to whom the names went.
func (s *site) judge(all []*wish) map[string]subjects.AppID {
	s.t.Helper()
	owner := map[string]subjects.AppID{}
	for _, d := range all {
		if d.answer.code != 0 {
			continue
		}
		name := kservice.Name(d.id)
		if other, taken := owner[name]; taken && other != d.id {
			s.t.Errorf("%s went to %s and to %s", name, other, d.id)
		}
		owner[name] = d.id
		app := &appv1.CreateResponse{}
		if err := proto.Unmarshal(d.answer.body, app); err != nil {
			s.t.Fatal(err)
		}
		if got, want := app.GetApp().GetSpec().GetContainer().GetImage(), siteImage(d.id, d.version); got != want {
			s.t.Errorf("the answer has %s, want %s", got, want)
		}
	}
	for _, d := range all {
		if d.answer.code != 0 && (d.answer.code != subjects.CodeFailedPrecondition || owner[kservice.Name(d.id)] == d.id) {
			s.t.Errorf("deploy %s: %v", d.id, d.answer.err())
		}
	}
	return owner
}

// judgeHistory checks what etcd held: the version that an answer names has the spec
// that was asked for, and no version is a mixture, or another app's than before.
func (s *site) judgeHistory(history *testenv.History, all []*wish, ids, owner map[string]subjects.AppID) {
	s.t.Helper()
	versions := map[string]int{}  // of the app, by resourceVersion
	written := map[string]bool{}  // by an answer
	before := map[string]string{} // digest, by name
	open := map[string]bool{}     // images that a try without a result may have brought
	newest, lost := int64(0), 0
	for _, d := range all {
		if d.open {
			open[siteImage(d.id, d.version)] = true
			lost++
		}
		if d.answer.code == 0 {
			version, err := strconv.ParseInt(d.answer.version, 10, 64)
			mustDo(s.t, err)
			newest = max(newest, version)
			written[d.answer.version] = written[d.answer.version] || d.answer.outcome != subjects.OutcomeUnchanged
		}
	}
	mustDo(s.t, history.WaitFor(s.t.Context(), newest))
	for _, change := range history.Changes() {
		if change.Kind != "Service" {
			continue
		}
		svc := &servingv1.Service{}
		mustDo(s.t, fromUnstructured(change.Object, svc))
		id, version, err := s.consistent(svc, ids)
		switch {
		case err != nil:
			s.t.Errorf("%s@%s: %v", change.Name, change.ResourceVersion, err)
		case change.Deleted:
			s.t.Errorf("%s was deleted", change.Name)
		case owner[change.Name] != id:
			s.t.Errorf("%s@%s is of %s, it went to %s", change.Name, change.ResourceVersion, id, owner[change.Name])
		}
		versions[change.ResourceVersion] = version
		if digest := svc.Annotations[keySpecSHA]; before[change.Name] != digest {
			before[change.Name] = digest
			if !written[change.ResourceVersion] && !open[siteImage(id, version)] {
				s.t.Errorf("%s@%s brought %s, of which no answer tells", change.Name, change.ResourceVersion, siteImage(id, version))
			}
		}
	}
	outcomes := map[subjects.Outcome]int{}
	for _, d := range all {
		outcomes[d.answer.outcome]++
		if d.answer.code == 0 && versions[d.answer.version] != d.version {
			s.t.Errorf("%s of version %d: its object %s has version %d", d.answer.outcome, d.version, d.answer.version, versions[d.answer.version])
		}
	}
	if got, want := outcomes[subjects.OutcomeCreated], len(owner); got > want || got < want-lost {
		s.t.Errorf("%d answers say created, want %d; %d tries had no result", got, want, lost)
	}
	s.t.Logf("outcomes: %v", outcomes)
}

// judgeEnd checks that each app is there once, with what the controller wrote, and
// that all caches show it so.
func (s *site) judgeEnd(replicas []*siteReplica, ids, owner map[string]subjects.AppID) {
	s.t.Helper()
	list := &servingv1.ServiceList{}
	mustDo(s.t, s.Client.List(s.t.Context(), list, client.InNamespace(s.namespace)))
	if got, want := len(list.Items), len(owner); got != want {
		s.t.Errorf("there are %d Knative Services, want %d", got, want)
	}
	for i := range list.Items {
		svc := &list.Items[i]
		id, _, err := s.consistent(svc, ids)
		if err != nil || owner[svc.Name] != id {
			s.t.Errorf("%s is of %s, it went to %s: %v", svc.Name, id, owner[svc.Name], err)
		}
		if svc.Labels[keyController] == "" || svc.Annotations[keyController] == "" || svc.Status.ObservedGeneration == 0 {
			s.t.Errorf("%s has lost what the controller wrote: %v, %v", svc.Name, svc.Labels, svc.Annotations)
		}
		s.cached(replicas, id, svc)
	}
}

// cached waits until all caches show an object as it is.
func (s *site) cached(replicas []*siteReplica, id subjects.AppID, svc *servingv1.Service) {
	s.t.Helper()
	for i, r := range replicas {
		soon(s.t, fmt.Sprintf("replica %d shows %s@%s", i, svc.Name, svc.ResourceVersion), func() error {
			entry, ok := r.bridge.App(id)
			if !ok || entry.Service.ResourceVersion != svc.ResourceVersion || entry.Service.UID != svc.UID {
				return errNotYet
			}
			return nil
		})
	}
}
