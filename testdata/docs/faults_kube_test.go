package docs_test

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// kubeconfigOf writes a kubeconfig with the credentials of cfg, and has the bridge use it.
func (s *site) kubeconfigOf(t *testing.T, cfg *rest.Config) {
	t.Helper()
	path := filepath.Join(s.dir, "bridge.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	s.options["kubeconfig"] = path
}

// granted has the bridge run as a user with these rights in every namespace.
func granted(name string, rules ...rbacv1.PolicyRule) func(t *testing.T, s *site) {
	return func(t *testing.T, s *site) {
		t.Helper()
		natsOf(t, s, nil)
		user, err := s.world.User(name)
		if err != nil {
			t.Fatal(err)
		}
		s.kubeconfigOf(t, user)
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}
		clientset := kubernetes.NewForConfigOrDie(s.world.Config)
		if _, err := clientset.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := clientset.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// kubeFaults are causes that a cluster has.
func kubeFaults() []fault {
	const right = "Missing right"
	reads := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{"serving.knative.dev"}, Resources: []string{resource}, Verbs: verbs}
	}
	namespaces := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}}
	return []fault{
		{
			name: "token", section: "Credentials not accepted", code: 1, repairs: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				cfg := rest.AnonymousClientConfig(s.world.Config)
				cfg.BearerToken = "expired"
				s.kubeconfigOf(t, cfg)
			},
		},
		{name: "list", section: right, code: 1, cause: granted("no-rights"), repairs: true},
		{name: "watch", section: right, code: 1, cause: granted("no-watch", reads("services", "list", "watch"), reads("revisions", "list"))},
		{name: "namespace", section: right, code: 1, cause: granted("no-namespace", reads("*", "list", "watch"))},
		{
			name: "lease", section: right, code: 1, args: []string{"serve", "--leader-elect", "--lease-namespace", "flyte"},
			cause: granted("no-lease", reads("*", "list", "watch"), namespaces),
		},
		{name: "definitions", section: "Knative is not installed", code: 1, cause: withoutKnative, repairs: true},
		{name: "etcd", section: "The history of the cluster stepped back", code: 1, cause: restoredEtcd, repairs: true, again: true},
	}
}

// clusterOf gives a site a cluster of its own.
func clusterOf(t *testing.T, s *site, opts testenv.Options) *testenv.Cluster {
	t.Helper()
	natsOf(t, s, nil)
	c, err := testenv.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(s.dir, "own.kubeconfig")
	if err := c.Kubeconfig(path); err != nil {
		t.Fatal(err)
	}
	s.options["kubeconfig"] = path
	return c
}

// withoutKnative is a cluster without Knative's definitions; the commands are run against one that
// has them.
func withoutKnative(t *testing.T, s *site) {
	t.Helper()
	clusterOf(t, s, testenv.Options{NoCRDs: true})
}

// restoredEtcd is a cluster that was put back to before what was published of it.
func restoredEtcd(t *testing.T, s *site) {
	t.Helper()
	c := clusterOf(t, s, testenv.Options{})
	saved, err := c.SaveEtcd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Far enough ahead that the restored cluster, which writes to itself, does not catch up.
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testenv.DefaultNamespace}}
	for i := range 500 {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, i))
		if err := c.Client.Patch(t.Context(), space, patch); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Create(t.Context(), testenv.App{Project: "shop", Domain: "production", Name: "late"}); err != nil {
		t.Fatal(err)
	}
	first := s.command(t, fault{})
	first.untilReady()
	first.interrupt()
	if err := c.RestoreEtcd(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
}
