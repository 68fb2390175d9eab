package appsvc

import (
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// What is read from Kubernetes may be ahead of the cache, at a rollout too.
func TestConvertLive(t *testing.T) {
	id := positionApp("a")
	service := func(uid, revision string) *kservice.Service {
		svc := positionEntry(id, uid, 50, "", 0).Service
		svc.Annotations = map[string]string{kservice.AnnotationAppID: id.String()}
		svc.Status.LatestReadyRevisionName = revision
		return svc
	}
	entry := func(svc *kservice.Service, revision string) *Entry {
		e := positionEntry(id, "u1", 50, "40", 3)
		e.Service, e.Revision.Name, e.Revision.Namespace = svc, revision, svc.Namespace
		return &e
	}
	stopped := service("u1", "r1")
	stopped.Labels = map[string]string{kservice.LabelStopped: "true"}
	for _, test := range []struct {
		name  string
		cache *Entry // nil: it does not show the app
		now   *kservice.Service
		want  uint32
	}{
		{"not shown", nil, service("u1", "r1"), 0},
		{"the same Revision", entry(service("u1", "r1"), "r1"), service("u1", "r1"), 3},
		{"another Revision", entry(service("u1", "r1"), "r1"), service("u1", "r2"), 3},
		{"one stands in", entry(service("u1", "r2"), "r1"), service("u1", "r2"), 3},
		{"no Revision", entry(service("u1", "r1"), "r1"), service("u1", ""), 0},
		{"another object", entry(service("u1", "r1"), "r1"), service("u2", "r2"), 0},
		{"another object, the same Revision", entry(service("u1", "r1"), "r1"), service("u2", "r1"), 3},
		{"stopped now", entry(service("u1", "r1"), "r1"), stopped, 0},
		{"stopped before", entry(stopped, "r1"), service("u1", "r2"), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := &positionCache{apps: map[subjects.AppID]Entry{}}
			if test.cache != nil {
				cache.apps[id] = *test.cache
			}
			s := &Service{cache: cache}
			app, err := s.convertLive(test.now, id)
			if err != nil {
				t.Fatal(err)
			}
			if got := app.GetStatus().GetCurrentReplicas(); got != test.want {
				t.Errorf("got %d replicas, want %d", got, test.want)
			}
		})
	}
}
