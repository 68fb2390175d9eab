package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeapi "github.com/appbridge/appbridge/bridge/kube"
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
		_, err := v.kube.namespaceUID(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return permanent(fmt.Errorf("namespaces %q: there is no such namespace", name))
		case kubeapi.ReasonOf(err) == kubeapi.Forbidden:
			v.unchecked[name] = true
		case err != nil:
			return kubeapi.Explain(err, "get on namespace "+name)
		}
	}
	return nil
}

// readCluster reads what the cluster holds.
func (v *verifier) readCluster(ctx context.Context, s *sides) error {
	c, err := v.kube.read(ctx)
	if err != nil {
		return err
	}
	s.current, s.awaits, s.version, s.leftOut = c.current, c.awaits, c.version, nil
	for _, ns := range c.empty {
		if v.unchecked[ns] {
			s.leftOut = append(s.leftOut, Note{
				Kind:   NoteNamespace,
				Detail: fmt.Sprintf("nothing is in namespace %s, and whether it exists is not known: the right get on it is missing", ns),
			})
		}
	}
	for key, err := range c.rejected {
		s.leftOut = append(s.leftOut, Note{Kind: NoteLeftOut, Detail: fmt.Sprintf("Knative Service %s is left out: %v", key, err)})
	}
	slices.SortFunc(s.leftOut, func(a, b Note) int { return strings.Compare(a.Detail, b.Detail) })
	return nil
}
