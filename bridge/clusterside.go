package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// checkNamespaces is an error when a namespace that is to be watched does not exist: it would
// look like one without apps. Where only listing is allowed, whether it exists stays open: if
// nothing is in it, a note says so.
func (v *verifier) checkNamespaces(ctx context.Context) error {
	v.unchecked = map[string]bool{}
	for _, name := range v.kube.namespaces {
		if name == metav1.NamespaceAll {
			continue
		}
		try, cancel := context.WithTimeout(ctx, kubeTimeout)
		namespace := &metav1.PartialObjectMetadata{}
		namespace.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
		err := v.kube.client.Get(try, types.NamespacedName{Name: name}, namespace)
		cancel()
		switch {
		case apierrors.IsNotFound(err):
			return permanent(fmt.Errorf("namespaces %q: there is no such namespace", name))
		case apierrors.IsForbidden(err):
			v.unchecked[name] = true
		case err != nil:
			return explain(err, "get on namespace "+name)
		}
	}
	return nil
}

// readCluster lists the Knative Services and Revisions consistently and finds
// out, by the source's own rules, which object is which app.
func (v *verifier) readCluster(ctx context.Context, s *sides) error {
	src := newSource(zap.NewNop(), newMetrics(prometheus.NewRegistry()))
	src.after = never
	src.mu.Lock()
	defer src.mu.Unlock()
	s.version, s.leftOut = "", nil
	for _, ns := range v.kube.namespaces {
		empty := true
		if err := listPages(ctx, v.kube, kindRevision, ns, func(page *kservice.RevisionList) {
			empty = empty && len(page.Items) == 0
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertRevision(&page.Items[i])
			}
		}); err != nil {
			return err
		}
		version := ""
		if err := listPages(ctx, v.kube, kindService, ns, func(page *kservice.ServiceList) {
			version, empty = page.ResourceVersion, empty && len(page.Items) == 0
			for i := range page.Items {
				_, _ = kservice.Trim(&page.Items[i])
				src.upsertService(&page.Items[i])
			}
		}, client.MatchingLabelsSelector{Selector: managedSelector()}); err != nil {
			return err
		}
		if empty && v.unchecked[ns] {
			s.leftOut = append(s.leftOut, Note{
				Kind:   NoteNamespace,
				Detail: fmt.Sprintf("nothing is in namespace %s, and whether it exists is not known: the right get on it is missing", ns),
			})
		}
		if s.version == "" || order(version, s.version) < 0 {
			s.version = version
		}
	}
	s.current, s.awaits = src.current, src.awaits
	for key, o := range src.objects {
		_, err := identity(o.service)
		if winner := src.current[o.app].service; err == nil && winner != o.service {
			err = errConflict(o.app, winner)
		}
		if err != nil {
			s.leftOut = append(s.leftOut, Note{Kind: NoteLeftOut, Detail: fmt.Sprintf("Knative Service %s is left out: %v", key, err)})
		}
	}
	slices.SortFunc(s.leftOut, func(a, b Note) int { return strings.Compare(a.Detail, b.Detail) })
	return nil
}

// listPages lists the objects of a kind consistently and hands each page to
// each. Every page is a list of its own: what was taken from one stays.
func listPages[T any, L interface {
	*T
	client.ObjectList
}](ctx context.Context, k *kube, kind, ns string, each func(L), opts ...client.ListOption) error {
	opts = append(opts, client.InNamespace(ns), client.Limit(listPage))
	for next := ""; ; {
		page := L(new(T))
		try, cancel := context.WithTimeout(ctx, kubeTimeout)
		err := k.client.List(try, page, append(slices.Clone(opts), client.Continue(next))...)
		cancel()
		resource := schema.GroupResource{Group: kservice.GroupVersion().Group, Resource: strings.ToLower(kind) + "s"}
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("kubernetes has no %s/%s: install the CRDs of Knative Serving: %w", resource, kservice.GroupVersion().Version, err)
		case err != nil:
			return explain(err, fmt.Sprintf("list on %s in %s", resource, namespaceText(ns)))
		}
		each(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}
