package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/compatibility.md names the versions that the tests run.
func TestVersions(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := strings.Join(strings.Fields(read("docs/compatibility.md")), " ")
	find := func(path, form string) string {
		t.Helper()
		found := regexp.MustCompile(form).FindStringSubmatch(read(path))
		if found == nil {
			t.Fatalf("%s has nothing of the form %s", path, form)
		}
		return found[1]
	}
	module := func(file, name string) string {
		t.Helper()
		return find(file, `(?m)^(?:require)?\s*`+regexp.QuoteMeta(name)+` v(\S+)`)
	}
	const cluster = "testdata/cluster/"
	older, err := filepath.Glob(filepath.Join(root, cluster+"nats-server-*.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range older {
		older[i] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "nats-server-"), ".mod")
		if got := module(cluster+filepath.Base(path), "github.com/nats-io/nats-server/v2"); got != older[i] {
			t.Errorf("%s requires nats-server %s", path, got)
		}
	}
	for _, want := range []string{
		"| | " + strings.Join(older, ", ") + " | stock binaries",
		"| nats-server | " + module("go.mod", "github.com/nats-io/nats-server/v2") + " |",
		"| `nats` CLI | " + module(cluster+"nats.mod", "github.com/nats-io/natscli") + " |",
		"| nats.go | " + module("go.mod", "github.com/nats-io/nats.go") + " |",
		"| kube-apiserver, kubectl | " + module(cluster+"go.mod", "k8s.io/kubernetes") + " |",
		"| Helm | " + module(".ci/helm.mod", "helm.sh/helm/v3") + " |",
		"| etcd | " + module(cluster+"go.mod", "go.etcd.io/etcd/server/v3") + " |",
		"| client-go | " + strings.TrimPrefix(module("go.mod", "k8s.io/client-go"), "v") + " |",
		"Knative Serving " + module("go.mod", "knative.dev/serving") + " are installed",
		"Knative Serving " + module(cluster+"knative/go.mod", "knative.dev/serving") + " itself on Kubernetes " + module(cluster+"go.mod", "k8s.io/kubernetes"),
		"which kwok " + module(cluster+"kwok.mod", "sigs.k8s.io/kwok") + " marks",
		"accepts is " + find("bridge/natsconn/version.go", `oldest = "([^"]+)"`) + ".",
		find("testdata/conformance/README.md", "`([0-9a-f]{40})`"),
		"needs Go " + find("go.mod", `(?m)^go (\S+)$`) + ".",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/compatibility.md has no %q", want)
		}
	}
}
