// Package compose tests docker-compose.yaml as it is handed out: the same file,
// images under the same names, against a real API server. `make compose-test`
// runs it; it needs a Docker engine but pulls nothing.
package compose

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const eventSubject = "flyte.apps.events.shop.development.cart.created"

func TestCompose(t *testing.T) {
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
	buildImage(t, natsImage(t), "nats-server", "github.com/nats-io/nats-server/v2")
	buildImage(t, "appbridge-test/relay", "relay", "./testdata/compose/relay")

	p := newProject(t,
		"KUBECONFIG_FILE="+containerKubeconfig(t, cluster, filepath.Join(dir, "kubeconfig")),
		"RELAY_DIR="+dir,
		"NATS_PORT=0", "HTTP_PORT=0", // any free ones
	)
	p.removeAtEnd(t)
	p.compose(t, "up", "-d")
	p.waitReady(t)
	p.checkConfinement(t)

	app := testenv.App{Project: "shop", Domain: "development", Name: "cart"}
	if _, err := cluster.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	event := p.nats(t, "sub", "--all", "--count=1", eventSubject)
	for _, want := range []string{
		"ce-type: org.flyte.app.created.v1",
		"ce-subject: shop.development.cart",
		`"createEvent":`,
	} {
		if !strings.Contains(event, want) {
			t.Errorf("nats sub %s: got\n%s\nwant %q in it", eventSubject, event, want)
		}
	}
	snapshot := p.waitSnapshot(t)
	checkSnapshot(t, snapshot)
	before := p.messages(t)

	// Gone and back with the volume kept: the state is still there, and nothing is published twice.
	id := p.containerID(t, "appbridge")
	p.compose(t, "stop", "appbridge")
	if c := inspect(t, id); c.State.Running || c.State.ExitCode != 0 {
		t.Errorf("appbridge after stop: running %t, exit code %d, want stopped with 0", c.State.Running, c.State.ExitCode)
	}
	p.compose(t, "down")
	p.compose(t, "up", "-d")
	p.waitReady(t)
	if got := p.messages(t); got != before {
		t.Errorf("messages in the stream after a restart: got %d, want %d as before", got, before)
	}
	if got := p.waitSnapshot(t); got != snapshot {
		t.Errorf("snapshot after a restart: got\n%s\nwant\n%s", got, snapshot)
	}
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
	// appbridge runs as user 65532 there. The folder above keeps other users of this machine out.
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// natsImage is the image that docker-compose.yaml names. Its version has to be
// that of the module the tests and the embedded server are built from.
func natsImage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docker-compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`image: (nats:([0-9.]+)-\S+)`).FindSubmatch(text)
	if image == nil {
		t.Fatal("docker-compose.yaml names no image nats:<version>-<variant>")
	}
	got := "v" + string(image[2])
	want := run(t, "go", "list", "-m", "-f", "{{.Version}}", "github.com/nats-io/nats-server/v2")
	if got != want {
		t.Errorf("docker-compose.yaml has nats-server %s, want %s as in go.mod", got, want)
	}
	return string(image[1])
}

// checkConfinement checks what the containers may not do.
func (p *project) checkConfinement(t *testing.T) {
	t.Helper()
	for service, user := range map[string]string{"nats": "", "appbridge": "65532:65532"} {
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
	readyz := url.URL{Scheme: "http", Host: p.address(t, "appbridge", "8080"), Path: "/readyz"}
	eventually(t, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, readyz.String(), nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status + ": " + string(body))
		}
		return nil
	})
}

// nats runs the stock CLI against the published port.
func (p *project) nats(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.tryNATS(t.Context(), t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (p *project) tryNATS(ctx context.Context, t *testing.T, args ...string) (string, error) {
	t.Helper()
	cli, err := testenv.NATSCLI()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return output(ctx, nil, cli, append([]string{"--server", "nats://" + p.address(t, "nats", "4222")}, args...)...)
}

// waitSnapshot reads the app's entry in the bucket, which follows the stream.
func (p *project) waitSnapshot(t *testing.T) string {
	t.Helper()
	var entry string
	eventually(t, func(ctx context.Context) (err error) {
		entry, err = p.tryNATS(ctx, t, "kv", "get", "flyte-apps", "shop.development.cart", "--raw")
		return err
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

// messages is how many messages the event stream holds.
func (p *project) messages(t *testing.T) int {
	t.Helper()
	var info struct {
		State struct{ Messages int }
	}
	text := p.nats(t, "stream", "info", "FLYTE_APPS", "--json")
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatalf("decode stream info: %v\n%s", err, text)
	}
	if info.State.Messages == 0 {
		t.Fatalf("the event stream is empty:\n%s", text)
	}
	return info.State.Messages
}

// eventually tries until there is no error, for a minute at most.
func eventually(t *testing.T, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("gave up waiting: %v", last)
		case <-ticker.C:
		}
	}
}
