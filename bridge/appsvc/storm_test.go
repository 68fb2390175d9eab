package appsvc_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Everything that changes apps at random and at once, with pods and Revisions that
// come and go: no answer is an error, and after that each app is what it is told to be.
func TestMixedStorm(t *testing.T) {
	t.Parallel()
	const apps, clients, lasts = 10, 20, 4 * time.Second
	s := newSite(t, cluster.Get(t), "", "")
	replicas := []*siteReplica{s.replica(siteConfig{name: "one"}), s.replica(siteConfig{name: "two"})}
	legal := map[subjects.APIOp][]subjects.Outcome{
		subjects.APIDeploy:        {subjects.OutcomeCreated, subjects.OutcomeUpdated, subjects.OutcomeUnchanged},
		subjects.APIStop:          {subjects.OutcomeStopped, subjects.OutcomeUnchanged, subjects.OutcomeMissing},
		subjects.APIDelete:        {subjects.OutcomeDeleted, subjects.OutcomeMissing},
		subjects.APIDeleteReplica: {subjects.OutcomeDeleted, subjects.OutcomeMissing},
	}
	ops := []subjects.APIOp{subjects.APIDeploy, subjects.APIDeploy, subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica}
	missing := map[string]bool{} // outcomes that have yet to be seen
	for op, outcomes := range legal {
		for _, outcome := range outcomes {
			missing[string(op)+" "+string(outcome)] = true
		}
	}
	storm, end := context.WithTimeout(t.Context(), patience)
	defer end()
	began := time.Now()
	var mu sync.Mutex
	counts := map[string]int{}
	note := func(op subjects.APIOp, outcome subjects.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		what := string(op) + " " + string(outcome)
		counts[what]++
		if delete(missing, what); len(missing) == 0 && time.Since(began) > lasts {
			end()
		}
	}
	var all errgroup.Group
	for range clients {
		nc := s.dial()
		all.Go(func() error {
			for storm.Err() == nil {
				id, op := s.id("app-"+strconv.Itoa(rand.IntN(apps))), ops[rand.IntN(len(ops))]
				var body proto.Message
				switch op {
				case subjects.APIDeploy:
					body = wanted(s.app(id, 1+rand.IntN(5)))
				case subjects.APIDeleteReplica:
					body = &appv1.ReplicaIdentifier{Name: id.Name + "-pod"}
				}
				a, err := s.well(nc, op, id, body)
				// The pod of an app that another one has just deleted is nobody's.
				if op == subjects.APIDeleteReplica && a != nil && a.code == subjects.CodeNotFound {
					continue
				}
				if a != nil && a.late() {
					continue
				}
				if err != nil {
					end()
					return err
				}
				note(op, a.outcome)
			}
			return nil
		})
	}
	all.Go(func() error {
		for storm.Err() == nil {
			id := s.id("app-" + strconv.Itoa(rand.IntN(apps)))
			_ = s.ready(id) // there may be no such app now
			if err := s.pod(id, id.Name+"-pod"); client.IgnoreAlreadyExists(err) != nil {
				return err
			}
		}
		return nil
	})
	mustDo(t, all.Wait())
	total := 0
	for what, n := range counts {
		op, outcome, _ := strings.Cut(what, " ")
		if total += n; !slices.Contains(legal[subjects.APIOp(op)], subjects.Outcome(outcome)) {
			t.Errorf("%d times %s was answered with %q", n, op, outcome)
		}
	}
	if len(missing) > 0 {
		t.Errorf("never seen: %v", missing)
	}
	t.Logf("%.0f operations a second: %v", float64(total)/time.Since(began).Seconds(), counts)

	nc := s.dial()
	for i := range apps {
		id := s.id("app-" + strconv.Itoa(i))
		a, err := s.well(nc, subjects.APIDeploy, id, wanted(s.app(id, 9)))
		if err != nil {
			t.Fatal(err)
		}
		svc := &servingv1.Service{}
		mustDo(t, s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: kservice.Name(id)}, svc))
		if _, version, err := s.consistent(svc, map[string]subjects.AppID{id.String(): id}); err != nil || version != 9 || svc.ResourceVersion != a.version {
			t.Errorf("%s@%s has version %d, %v; the answer is %s", id, svc.ResourceVersion, version, err, a.version)
		}
		if got, stopped := svc.Labels[keyStopped]; stopped {
			t.Errorf("%s is stopped (%q)", id, got)
		}
		s.cached(replicas, id, svc)
	}
	mustDo(t, s.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(s.namespace)))
}
