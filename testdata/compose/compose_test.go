// Package compose tests docker-compose.yaml as it is handed out: the same file,
// images under the same names, against a real API server. `make compose-test`
// runs it; it needs a Docker engine but pulls nothing.
package compose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestCompose(t *testing.T) {
	cluster, kubeconfig, relay := startCluster(t)
	buildImages(t)
	p := newProject(t, "single", kubeconfig, relay, "NATS_PORT=0", "HTTP_PORT=0", "PROMETHEUS_PORT=0") // any free ports
	p.removeAtEnd(t)

	// Without NATS the bridge waits; it neither ends nor is it ready.
	p.compose(t, "up", "-d", "--no-deps", "kubernetes", "appbridge")
	p.waitFor(t, "appbridge waits for NATS", func(status int, body string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(body, "NATS")
	})
	p.compose(t, "up", "-d")
	p.waitReady(t)
	if got := inspect(t, p.containerID(t, "appbridge")).RestartCount; got != 0 {
		t.Errorf("appbridge was restarted %d times while it waited for NATS, want 0", got)
	}
	p.checkConfinement(t)

	app := testenv.App{Project: "shop", Domain: "development", Name: "cart"}
	if _, err := cluster.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	snapshot := p.waitSnapshot(t)
	checkSnapshot(t, snapshot)
	p.checkUsers(t)
	p.checkPrometheus(t)
	before := p.events(t)

	// A program that ends by itself is started again.
	for _, service := range []string{"nats", "appbridge"} {
		p.crash(t, service)
	}
	p.waitReady(t)

	// Gone and back with the volume kept: the state is still there, and nothing is published twice.
	id := p.containerID(t, "appbridge")
	p.compose(t, "stop", "appbridge")
	if c := inspect(t, id); c.State.Running || c.State.ExitCode != 0 {
		t.Errorf("appbridge after stop: running %t, exit code %d, want stopped with 0", c.State.Running, c.State.ExitCode)
	}
	p.compose(t, "down")
	p.compose(t, "up", "-d")
	p.waitReady(t)
	if got := p.events(t); got != before {
		t.Errorf("messages in the stream after a restart: got %d, want %d as before", got, before)
	}
	if got := p.waitSnapshot(t); got != snapshot {
		t.Errorf("snapshot after a restart: got\n%s\nwant\n%s", got, snapshot)
	}
}

// startCluster starts an API server, and returns a kubeconfig for containers and the variable that
// compose.test.yaml needs to reach it.
func startCluster(t *testing.T) (cluster *testenv.Cluster, kubeconfig, relay string) {
	t.Helper()
	cluster, err := testenv.Start(t.Context(), testenv.Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	server, err := url.Parse(cluster.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	relayAPI(t, filepath.Join(dir, "api.sock"), server.Host)
	return cluster, containerKubeconfig(t, cluster, filepath.Join(dir, "kubeconfig")), "RELAY_DIR=" + dir
}

// relayAPI hands every connection that arrives at the socket on to the API server.
func relayAPI(t *testing.T, socket, server string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	// The relay's container may run as another user than this test.
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed at the end of the test
			}
			go func() {
				defer func() { _ = client.Close() }()
				upstream, err := net.Dial("tcp", server)
				if err != nil {
					return // the client sees its connection close, and tries again
				}
				go func() {
					_, _ = io.Copy(upstream, client)
					_ = upstream.Close()
				}()
				_, _ = io.Copy(client, upstream)
			}()
		}
	}()
}

// containerKubeconfig writes a kubeconfig for use inside the compose network: the
// API server under its service's name, its certificate checked under its own.
func containerKubeconfig(t *testing.T, cluster *testenv.Cluster, path string) string {
	t.Helper()
	if err := cluster.Kubeconfig(path); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server = "https://kubernetes:6443"
		c.TLSServerName = "localhost"
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkConfinement checks what the containers may not do.
func (p *project) checkConfinement(t *testing.T) {
	t.Helper()
	self := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()) // who ran init.sh
	for service, user := range map[string]string{"nats": "", "appbridge": self, "prometheus": "65534:65534"} {
		c := inspect(t, p.containerID(t, service))
		if c.Config.User != user {
			t.Errorf("%s runs as user %q, want %q", service, c.Config.User, user)
		}
		if !c.HostConfig.ReadonlyRootfs {
			t.Errorf("%s: its root file system is writable, want read-only", service)
		}
		if got, want := c.HostConfig.CapDrop, []string{"ALL"}; !slices.Equal(got, want) {
			t.Errorf("%s: dropped capabilities: got %q, want %q", service, got, want)
		}
		if got, want := c.HostConfig.SecurityOpt, "no-new-privileges:true"; !slices.Contains(got, want) {
			t.Errorf("%s: security options: got %q, want %q among them", service, got, want)
		}
	}
}

// waitReady polls /readyz at the published port.
func (p *project) waitReady(t *testing.T) {
	t.Helper()
	p.waitFor(t, "appbridge is ready", func(status int, _ string) bool { return status == http.StatusOK })
}

// waitFor polls /readyz until it answers as wanted.
func (p *project) waitFor(t *testing.T, what string, wanted func(status int, body string) bool) {
	t.Helper()
	suite.Eventually(t, suite.Patience, what, func() error {
		body, status, err := p.get(t, "/readyz")
		if err == nil && !wanted(status, body) {
			err = fmt.Errorf("/readyz: %d %s", status, body)
		}
		return err
	})
}

// get asks appbridge's HTTP server at the published port.
func (p *project) get(t *testing.T, path string) (body string, status int, err error) {
	t.Helper()
	at := kubesuite.Instance{HTTP: p.address(t, p.bridge(), "8080")}
	return at.Get(t.Context(), path)
}

// metric is a metric of appbridge without labels.
func (p *project) metric(t *testing.T, name string) int {
	t.Helper()
	return int((&kubesuite.Instance{HTTP: p.address(t, p.bridge(), "8080")}).Metric(t, name))
}

// bridge is the service of the profile that runs appbridge.
func (p *project) bridge() string {
	if p.profile == "cluster" {
		return "appbridge-cluster"
	}
	return "appbridge"
}

// waitSnapshot reads the app's entry in the bucket, which follows the stream.
func (p *project) waitSnapshot(t *testing.T) (entry string) {
	t.Helper()
	js := p.jetstream(t, "bridge")
	suite.Eventually(t, suite.Patience, "the bucket has the app", func() error {
		all, err := messages(t.Context(), js, subjects.BucketStream(subjects.DefaultBucket))
		if err == nil && len(all) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			return err
		}
		entry = string(all[len(all)-1].Data)
		return nil
	})
	return entry
}

func checkSnapshot(t *testing.T, entry string) {
	t.Helper()
	var app struct {
		Metadata struct {
			ID struct{ Project, Domain, Name string }
		}
	}
	if err := json.Unmarshal([]byte(entry), &app); err != nil {
		t.Fatalf("decode the bucket's entry: %v\n%s", err, entry)
	}
	id := app.Metadata.ID
	if got, want := strings.Join([]string{id.Project, id.Domain, id.Name}, "/"), "shop/development/cart"; got != want {
		t.Errorf("the bucket's entry is of app %q, want %q\n%s", got, want, entry)
	}
}

// events is how many messages the event stream holds.
func (p *project) events(t *testing.T) int {
	t.Helper()
	all, err := messages(t.Context(), p.jetstream(t, "bridge"), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("the event stream is empty")
	}
	return len(all)
}
