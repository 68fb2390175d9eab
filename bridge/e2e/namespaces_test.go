package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// logsOf waits until a bridge has logged a message about a namespace n times.
func (r *running) logsOf(message, namespace string, n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%q about %s, %d times", message, namespace, n), func() error {
		if got := r.logs.FilterMessage(message).FilterField(zap.String("namespace", namespace)).Len(); got != n {
			return fmt.Errorf("%d times", got)
		}
		return nil
	})
}

const (
	logNamespaceMissing = "a watched namespace does not exist"
	logNamespaceThere   = "a watched namespace exists now"
	logNamespaceUnknown = "whether a watched namespace exists is not known"
)

// A bridge whose namespaces do not exist is not ready, and names them; it goes on by itself once one
// of them exists.
func TestMissingNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.namespace+"-flite", w.namespace+"-flyet"
	cfg := w.config()
	cfg.Namespaces = []string{first, second}
	r := w.launch(cfg, nil)
	eventually(t, "not ready, with the names", func() error {
		err := r.bridge.Ready()
		if err == nil {
			return fmt.Errorf("%w: it is ready", errFatal)
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("namespaces %q: there is no such namespace", first+","+second)) {
			return err
		}
		return nil
	})
	r.logsOf(logNamespaceMissing, first, 1)
	r.logsOf(logNamespaceMissing, second, 1)

	must[any](t)(nil, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: second}}))
	r.waitReady()
	r.logsOf(logNamespaceThere, second, 1)
	w.namespace = second
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	r.logsOf(logNamespaceMissing, first, 1)
	r.logsOf(logNamespaceThere, first, 0)
	must[any](t)(nil, r.stop())
}

// A bridge that may not read its namespace goes on without knowing whether it exists.
func TestUnknownNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := w.namespace + "-reader"
	meta := metav1.ObjectMeta{Name: user}
	must[any](t)(nil, w.Client.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services", "revisions"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{metav1.NamespaceSystem}, Verbs: []string{"get"}},
	}}))
	must[any](t)(nil, w.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}))
	r := w.launch(w.config(), must[*rest.Config](t)(w.User(user)))
	r.waitReady()
	r.logsOf(logNamespaceUnknown, w.namespace, 1)
	r.logsOf(logNamespaceMissing, w.namespace, 0)
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	must[any](t)(nil, r.stop())
}
