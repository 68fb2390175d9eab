package bridge

import (
	"context"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/subjects"
)

// contents is what consistent lists showed of the cluster.
type contents struct {
	current  map[subjects.AppID]state
	awaits   map[subjects.AppID]*awaited // the apps whose Revision the lists did not show
	version  string                      // of the oldest list of Knative Services
	empty    []string                    // the namespaces in which nothing is
	rejected map[types.NamespacedName]error
}

// read lists the Knative Services and Revisions consistently and finds out, by the source's own
// rules, which object is which app.
func (k *kube) read(ctx context.Context) (contents, error) {
	src := newSource(zap.NewNop(), func(string) {})
	src.setAfter(func(time.Duration, func()) (stop func() bool) { return func() bool { return false } }) // no time passes
	c := contents{current: src.current, awaits: src.standIns.apps, rejected: map[types.NamespacedName]error{}}
	for _, ns := range k.namespaces {
		objects := 0
		if err := listObjects(ctx, k, kindRevision, ns, func(page *kservice.RevisionList) {
			objects += len(page.Items)
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertRevision(&page.Items[i])
			}
		}); err != nil {
			return contents{}, err
		}
		version := ""
		if err := listObjects(ctx, k, kindService, ns, func(page *kservice.ServiceList) {
			objects += len(page.Items)
			version = page.ResourceVersion
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertService(&page.Items[i])
			}
		}); err != nil {
			return contents{}, err
		}
		if objects == 0 {
			c.empty = append(c.empty, ns)
		}
		c.version = earlier(c.version, version)
	}
	for key, o := range src.shown.services {
		_, err := identity(o.service)
		if winner := src.current[o.app].service; err == nil && winner != o.service {
			err = errConflict(o.app, winner)
		}
		if err != nil {
			c.rejected[key] = err
		}
	}
	return c, nil
}

// listObjects lists the objects of a kind consistently. Every page is a list of its own: what was
// taken from one stays.
func listObjects[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, k *kube, kind, ns string, each func(L)) error {
	err := kubeapi.EachPage(ctx, k.client, func() L { return new(T) }, func(page L) error {
		each(page)
		return nil
	}, watched(kind, ns)...)
	if err != nil {
		return explainList(err, kind, ns)
	}
	return nil
}
