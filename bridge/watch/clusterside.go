package watch

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

// ClusterReader reads the apps of the cluster without informers.
type ClusterReader struct {
	Cluster   *Cluster
	unchecked map[string]bool // the namespaces that may not exist
}

// ClusterApps are the apps of the cluster.
type ClusterApps struct {
	Current map[subjects.AppID]app.State
	Pending map[subjects.AppID]bool        // those whose Revision is not in the lists
	Version string                         // of the list of Knative Services
	Skipped map[types.NamespacedName]error // the Knative Services that are no app, with the reason
	Unknown []string                       // namespaces that are empty and may not exist
}

// CheckNamespaces returns an error if a watched namespace does not exist: it would look like one
// without apps. Without the right get on it, whether it exists is not known.
func (r *ClusterReader) CheckNamespaces(ctx context.Context) error {
	r.unchecked = map[string]bool{}
	for _, name := range r.Cluster.Namespaces {
		if name == metav1.NamespaceAll {
			continue
		}
		_, err := r.Cluster.NamespaceUID(ctx, name)
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

// Read lists Knative Services and Revisions consistently, and matches apps as the source does.
func (r *ClusterReader) Read(ctx context.Context) (*ClusterApps, error) {
	src := NewSource(zap.NewNop(), func(string) {})
	src.SetAfter(func(time.Duration, func()) (stop func() bool) { return func() bool { return false } }) // no time passes
	apps := &ClusterApps{Current: src.current, Pending: map[subjects.AppID]bool{}, Skipped: map[types.NamespacedName]error{}}
	for _, ns := range r.Cluster.Namespaces {
		objects := 0
		if err := listObjects(ctx, r.Cluster, KindRevision, ns, func(page *kservice.RevisionList) {
			objects += len(page.Items)
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertRevision(&page.Items[i])
			}
		}); err != nil {
			return nil, err
		}
		version := ""
		if err := listObjects(ctx, r.Cluster, KindService, ns, func(page *kservice.ServiceList) {
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
			apps.Unknown = append(apps.Unknown, ns)
		}
		apps.Version = earlier(apps.Version, version)
	}
	for id := range src.standIns.apps {
		apps.Pending[id] = true
	}
	for key, o := range src.Shown.services {
		_, err := app.Identity(o.service)
		if winner := src.current[o.app].Service; err == nil && winner != o.service {
			err = errConflict(o.app, winner)
		}
		if err != nil {
			apps.Skipped[key] = err
		}
	}
	return apps, nil
}

// listObjects lists the objects of a kind consistently. Every page is a list of its own: what was
// taken from one stays.
func listObjects[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, k *Cluster, kind, ns string, each func(L)) error {
	err := kubeapi.EachPage(ctx, k.Client, func() L { return new(T) }, func(page L) error {
		each(page)
		return nil
	}, watched(kind, ns)...)
	if err != nil {
		return explainList(err, kind, ns)
	}
	return nil
}
