package appsvc

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// shownApp is a cache of one app, of which nothing else is read; nil: it has none.
type shownApp struct {
	Cache
	entry *Entry
}

func (s shownApp) App(subjects.AppID) (Entry, bool) {
	if s.entry == nil {
		return Entry{}, false
	}
	return *s.entry, true
}

// What is read from Kubernetes may be ahead of the cache, at a rollout too.
func TestConvertLive(t *testing.T) {
	t.Parallel()
	id := subjects.AppID{Project: "shop", Domain: "production", Name: "a"}
	service := func(uid, revision string) *kservice.Service {
		svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "flyte", Name: "a", UID: types.UID(uid), Annotations: map[string]string{kservice.AnnotationAppID: id.String()},
		}}
		svc.Status.LatestReadyRevisionName = revision
		return svc
	}
	entry := func(svc *kservice.Service, revision string) *Entry {
		count := int32(3)
		return &Entry{ID: id, Service: app.Keeper{}.Keep(svc), Revision: &kservice.Revision{
			ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: revision}, Status: kservice.RevisionStatus{ActualReplicas: &count},
		}}
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
			s := &Service{cache: shownApp{entry: test.cache}}
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
