package bridge

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

// clusterReader reads the apps of the cluster without informers.
type clusterReader struct {
	kube      *kube
	unchecked map[string]bool // the namespaces that may not exist
}

// clusterApps are the apps of the cluster.
type clusterApps struct {
	current map[subjects.AppID]app.State
	pending map[subjects.AppID]bool        // those whose Revision the lists did not show
	version string                         // of the list of Knative Services
	skipped map[types.NamespacedName]error // the Knative Services that are no app, with the reason
	unknown []string                       // namespaces that are empty and may not exist
}

// checkNamespaces returns an error if a watched namespace does not exist: it would look like one
// without apps. Without the right get on it, whether it exists is not known.
func (r *clusterReader) checkNamespaces(ctx context.Context) error {
	r.unchecked = map[string]bool{}
	for _, name := range r.kube.namespaces {
		if name == metav1.NamespaceAll {
			continue
		}
		_, err := r.kube.namespaceUID(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return retry.Permanent(fmt.Errorf("namespaces %q: there is no such namespace", name))
		case kubeapi.ReasonOf(err) == kubeapi.Forbidden:
			r.unchecked[name] = true
		case err != nil:
			return kubeapi.Explain(err, "get on namespace "+name)
		}
	}
	return nil
}

// read lists the Knative Services and Revisions consistently. Which object is which app, the source
// decides as it does for informers.
func (r *clusterReader) read(ctx context.Context) (*clusterApps, error) {
	src := newSource(zap.NewNop(), func(string) {})
	src.setAfter(func(time.Duration, func()) (stop func() bool) { return func() bool { return false } }) // no time passes
	apps := &clusterApps{current: src.current, pending: map[subjects.AppID]bool{}, skipped: map[types.NamespacedName]error{}}
	for _, ns := range r.kube.namespaces {
		objects := 0
		if err := listObjects(ctx, r.kube, kindRevision, ns, func(page *kservice.RevisionList) {
			objects += len(page.Items)
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertRevision(&page.Items[i])
			}
		}); err != nil {
			return nil, err
		}
		version := ""
		if err := listObjects(ctx, r.kube, kindService, ns, func(page *kservice.ServiceList) {
			objects += len(page.Items)
			version = page.ResourceVersion
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertService(&page.Items[i])
			}
		}); err != nil {
			return nil, err
		}
		if objects == 0 && r.unchecked[ns] {
			apps.unknown = append(apps.unknown, ns)
		}
		apps.version = earlier(apps.version, version)
	}
	for id := range src.standIns.apps {
		apps.pending[id] = true
	}
	for key, o := range src.shown.services {
		_, err := app.Identity(o.service)
		if winner := src.current[o.app].Service; err == nil && winner != o.service {
			err = errConflict(o.app, winner)
		}
		if err != nil {
			apps.skipped[key] = err
		}
	}
	return apps, nil
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
