package watch

import (
	"context"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	Pending map[subjects.AppID]bool        // those whose Revision is not in the lists, or whose pods recover or have just recovered
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
		switch state, err := r.Cluster.exists(ctx, name); {
		case err != nil:
			return err
		case state == existenceMissing:
			return retry.Permanent(errNoNamespace(name))
		default:
			r.unchecked[name] = state == existenceUnknown
		}
	}
	return nil
}

// Read lists Knative Services and Revisions consistently, and matches apps as the source does.
func (r *ClusterReader) Read(ctx context.Context) (*ClusterApps, error) {
	src := NewSource(zap.NewNop(), r.Cluster.keeper, func(string) {})
	src.SetAfter(func(time.Duration, func()) (stop func() bool) { return func() bool { return false } }) // no time passes
	apps := &ClusterApps{Current: src.current, Pending: map[subjects.AppID]bool{}, Skipped: map[types.NamespacedName]error{}}
	for _, ns := range r.Cluster.Namespaces {
		objects, version := 0, ""
		each := func(obj runtime.Object) error { //nolint:unparam // for meta.EachListItem
			objects++
			kept, _ := r.Cluster.keeper.Transform(obj)
			switch o := kept.(type) {
			case *kservice.Revision:
				src.upsertRevision(o)
			case *corev1.Pod:
				src.upsertPod(&cachedPod{ObjectMeta: podMeta(o), state: kservice.PodStateOf(o)})
			case *app.CachedService:
				src.upsertService(o)
			}
			return nil
		}
		// Every page is a list of its own: what was taken from one stays.
		for _, kind := range r.Cluster.Kinds() {
			newPage := lists[kind]
			if err := kubeapi.EachPage(ctx, r.Cluster.Client, newPage, func(page client.ObjectList) error {
				version = page.GetResourceVersion()
				return meta.EachListItem(page, each)
			}, watched(kind, ns)...); err != nil {
				return nil, explainList(err, kind, ns)
			}
		}
		if objects == 0 && r.unchecked[ns] {
			apps.Unknown = append(apps.Unknown, ns)
		}
		apps.Version = earlier(apps.Version, version)
	}
	for id := range src.standIns.apps {
		apps.Pending[id] = true
	}
	for _, id := range src.recovering() {
		apps.Pending[id] = true
	}
	for key, o := range src.Shown.services {
		if winner := src.current[o.ID].Service; !o.IsApp() {
			apps.Skipped[key] = o.Err
		} else if winner != o {
			apps.Skipped[key] = errConflict(o.ID, winner)
		}
	}
	return apps, nil
}

// lists are the kinds with their lists.
var lists = map[string]func() client.ObjectList{
	KindRevision: func() client.ObjectList { return &kservice.RevisionList{} },
	KindPod:      func() client.ObjectList { return &corev1.PodList{} },
	KindService:  func() client.ObjectList { return &kservice.ServiceList{} },
}
