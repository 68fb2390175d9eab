package chart

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// errNoEvent is for what is not there yet.
var errNoEvent = errors.New("no event of the sample")

// commands are those of a section of docs/install.md, in their order.
func commands(t *testing.T, section string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/install.md has no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var all []string
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)\n```").FindAllStringSubmatch(rest, -1) {
		all = append(all, strings.Split(strings.ReplaceAll(block[1], "\\\n", " "), "\n")...)
	}
	if len(all) == 0 {
		t.Fatalf("docs/install.md has no commands in section %q", section)
	}
	return all
}

// TestInstall runs the commands of docs/install.md, sections "With the chart", "Values that
// matter" and "Uninstall": Helm installs the chart on a real API server, and a first event
// arrives. There is no kubelet that runs pods: the test starts the program with what the cluster
// then has, and sets the status of the Deployment.
func TestInstall(t *testing.T) {
	w := world.Get(t)
	dir := t.TempDir()
	if err := os.Symlink(suite.Tool(t, root, "helm"), filepath.Join(dir, "helm")); err != nil {
		t.Fatal(err)
	}
	broker := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
	configtest.WriteCreds(t, dir, configtest.NewSeed(t))
	run := func(command string) string {
		t.Helper()
		t.Log(command)
		return w.Start(t, "export NATS_URL="+broker+" PATH="+dir+":$PATH; cd "+root+"; "+command).Wait()
	}

	var bridge *kubesuite.Instance
	sections := append(commands(t, "With the chart"), commands(t, "Values that matter")...)
	for _, command := range append(sections, commands(t, "Uninstall")...) {
		switch {
		case strings.HasPrefix(command, "make image"), strings.HasPrefix(command, "docker push"):
			// The tests of the image run the former; the latter needs a registry.
		case strings.Contains(command, "embedded-values.yaml"):
			// From several replicas to one with a volume, which stays and is taken over.
			run("helm upgrade appbridge deploy/chart/appbridge --namespace appbridge --values deploy/chart/appbridge/ci/embedded-values.yaml")
			run("helm uninstall appbridge --namespace appbridge") // one release of a name
			run(command)
			if out := run("kubectl --namespace appbridge get persistentvolumeclaim,service"); !strings.Contains(out, "appbridge-store") || !strings.Contains(out, "appbridge-nats") {
				t.Errorf("the embedded server has no volume or no Service:\n%s", out)
			}
		case strings.HasPrefix(command, "helm install"):
			run(command)
			rolledOut(t, w)
			bridge = serveInstalled(t, w, broker)
		case strings.HasPrefix(command, "helm upgrade"):
			run(command)
			if got := strings.TrimSpace(run("kubectl --namespace appbridge get deployment appbridge --output jsonpath={.spec.replicas}")); got != "3" {
				t.Errorf("after %s: got %s replicas, want 3", command, got)
			}
		case strings.HasPrefix(command, "helm uninstall"):
			run(command)
			if err := bridge.Stop(suite.Patience); err != nil {
				t.Error(err)
			}
		case strings.Contains(command, "create secret"):
			run(strings.Replace(command, "=user.creds", "="+filepath.Join(dir, "user.creds"), 1))
		case strings.HasPrefix(command, "nats sub --all --count=1"), strings.HasPrefix(command, "nats kv get"):
			// The sample's event is published moments after kubectl apply.
			suite.Eventually(t, suite.Patience, command, func() error {
				if out := run(command + " || true"); !strings.Contains(out, "storefront") {
					return errNoEvent
				}
				return nil
			})
		case strings.HasPrefix(command, "kubectl delete namespace"):
			run(command + " --wait=false") // no controller empties it
		default:
			run(command)
		}
	}
	if out := run("nats stream ls -a"); strings.Contains(out, "FLYTE_APPS") || strings.Contains(out, "KV_flyte-apps") {
		t.Errorf("after the last command there is still\n%s", out)
	}
}

// rolledOut sets the status that the controllers of a cluster would.
func rolledOut(t *testing.T, w *kubesuite.World) {
	t.Helper()
	var deployment appsv1.Deployment
	if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: "appbridge", Name: "appbridge"}, &deployment); err != nil {
		t.Fatal(err)
	}
	n := *deployment.Spec.Replicas
	deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	if err := w.Client.Status().Update(t.Context(), &deployment); err != nil {
		t.Fatal(err)
	}
}

// serveInstalled runs the program with the configuration in the cluster, as its service account.
// The name of the NATS server is the one that only a cluster knows.
func serveInstalled(t *testing.T, w *kubesuite.World, broker string) *kubesuite.Instance {
	t.Helper()
	var files corev1.ConfigMap
	if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: "appbridge", Name: "appbridge"}, &files); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(files.Data["appbridge.yaml"], "nats.nats.svc:4222", address.Host, 1)
	if !strings.Contains(config, address.Host) {
		t.Fatalf("the configuration does not name the server of docs/install.md:\n%s", config)
	}
	return serve(t, w, "installed", []string{
		"serve", "--config", configtest.WriteFile(t, t.TempDir(), "appbridge.yaml", config),
		"--kubeconfig", kubeconfigOf(t, w, "appbridge", "appbridge"), "--lease-namespace", "appbridge",
	})
}
