package appsvc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The variants of the Helm chart: values of its folder ci, or its defaults.
const (
	chartDefault       = ""
	chartWrites        = "writes"
	chartAllNamespaces = "all-namespaces"

	chartNamespace = "appbridge" // of the release
)

// kubectl runs kubectl as an administrator.
func (s *site) kubectl(args ...string) {
	s.t.Helper()
	path, err := testenv.Kubectl()
	if err != nil {
		s.t.Fatal(err)
	}
	kubeconfig := filepath.Join(s.t.TempDir(), "kubeconfig")
	mustDo(s.t, s.Kubeconfig(kubeconfig))
	cmd := exec.CommandContext(s.t.Context(), path, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
}

// rendered is the chart with the values of a variant. Of the defaults there is a file.
func rendered(t *testing.T, variant string) string {
	t.Helper()
	root := filepath.Join("..", "..")
	if variant == chartDefault {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "appbridge.yaml"))
		mustDo(t, err)
		return string(text)
	}
	const chart = "deploy/chart/appbridge"
	cmd := exec.CommandContext(t.Context(), suite.Tool(t, root, "helm"), "template", "appbridge", chart,
		"--namespace", chartNamespace, "--values", chart+"/ci/"+variant+"-values.yaml")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm template (%s): %v", variant, err)
	}
	return string(out)
}

// install applies the chart with the values of a variant.
func (s *site) install(variant string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "rendered.yaml")
	mustDo(s.t, os.WriteFile(file, []byte(rendered(s.t, variant)), 0o600))
	s.kubectl("apply", "--server-side", "-f", file)
}

// serviceAccount is how a service account of the release reaches the cluster: by a token alone.
func (s *site) serviceAccount(name string) rest.Config {
	s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: chartNamespace, Name: name}}
	token := &authenticationv1.TokenRequest{}
	mustDo(s.t, s.Client.SubResource("token").Create(s.t.Context(), account, token))
	cfg := rest.AnonymousClientConfig(s.Config)
	cfg.BearerToken = token.Status.Token
	return *cfg
}
