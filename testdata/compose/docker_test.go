package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// root is the repository's root; tests run in their package's folder.
const root = "../.."

// run runs a command at the repository's root, fails the test when it fails, and
// returns its standard output without the last newline.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := output(t.Context(), nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}

// project is docker-compose.yaml in a folder of its own, prepared as a user prepares it, with this
// test's addition.
type project struct {
	dir     string
	files   []string // in dir
	profile string
	command []string // docker compose, in whichever form there is
	env     []string
}

// newProject copies what docker-compose.yaml needs into a folder and runs init.sh there. The
// variables of env win over those that init.sh writes.
func newProject(t *testing.T, profile, kubeconfig string, env ...string) *project {
	t.Helper()
	run(t, "docker", "version", "--format", "{{.Server.Version}}") // an engine answers
	p := &project{
		dir:     t.TempDir(),
		files:   []string{"docker-compose.yaml", "compose.test.yaml"},
		profile: profile,
		command: composeCommand(t),
		env:     append(env, fmt.Sprintf("COMPOSE_PROJECT_NAME=appbridge-test-%d-%s", os.Getpid(), profile)),
	}
	checkout(t, p.dir)
	p.init(t, kubeconfig)
	t.Logf("compose is %s, version %s", strings.Join(p.command, " "), p.compose(t, "version", "--short"))
	return p
}

// checkout copies docker-compose.yaml and what it mounts.
func checkout(t *testing.T, dir string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(root, "deploy"))); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"docker-compose.yaml":                "docker-compose.yaml",
		"testdata/compose/compose.test.yaml": "compose.test.yaml",
	} {
		text, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// password is that of a user of deploy/nats/accounts.conf.
func (p *project) password(t *testing.T, user string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "deploy/compose/secrets/nats.env"))
	if err != nil {
		t.Fatal(err)
	}
	name := "NATS_" + strings.ToUpper(strings.ReplaceAll(user, "-", "_")) + "_PASSWORD="
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("nats.env has no %s", name)
	return ""
}

// composeCommand prefers what is installed; a machine that has only an engine, or a compose before
// version 2, gets the version pinned in .ci, which takes minutes the first time.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if command := strings.Fields(os.Getenv("COMPOSE")); len(command) > 0 {
		return command
	}
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		version, err := output(t.Context(), nil, command[0], append(command[1:], "version", "--short")...)
		if err == nil && !strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.") {
			return command
		}
	}
	t.Log("no compose is installed: building the pinned one")
	return []string{suite.Tool(t, root, "compose")}
}

func (p *project) try(ctx context.Context, args ...string) (string, error) {
	at := []string{"--project-directory", p.dir, "--profile", p.profile}
	for _, file := range p.files {
		at = append(at, "-f", filepath.Join(p.dir, file))
	}
	return output(ctx, p.env, p.command[0], slices.Concat(p.command[1:], at, args)...)
}

func (p *project) compose(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.try(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// removeAtEnd takes down what the test started, volumes too, and shows the
// containers' logs if it failed.
func (p *project) removeAtEnd(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			logs, err := p.try(ctx, "logs", "--no-color", "--tail=100")
			t.Logf("logs of the containers (%v):\n%s", err, logs)
		}
		if _, err := p.try(ctx, "down", "-v", "--remove-orphans"); err != nil {
			t.Error(err)
		}
	})
}

// container is what the engine says of one service's container.
type container struct {
	Config struct {
		User string
	}
	State struct {
		Running  bool
		ExitCode int
	}
	RestartCount int
	HostConfig   struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
	}
	NetworkSettings struct {
		Ports    map[string][]struct{ HostIp, HostPort string }
		Networks map[string]struct{ NetworkID string }
	}
}

func (p *project) containerID(t *testing.T, service string) string {
	t.Helper()
	id := p.compose(t, "ps", "-q", service)
	if id == "" || strings.ContainsAny(id, " \n") {
		t.Fatalf("compose ps -q %s: got %q, want the id of one container", service, id)
	}
	return id
}

func inspect(t *testing.T, id string) container {
	t.Helper()
	var c container
	if err := json.Unmarshal([]byte(run(t, "docker", "inspect", "--format", "{{json .}}", id)), &c); err != nil {
		t.Fatalf("docker inspect %s: %v", id, err)
	}
	return c
}

// address is where a port of a service is published on the host.
func (p *project) address(t *testing.T, service, port string) string {
	t.Helper()
	bound := inspect(t, p.containerID(t, service)).NetworkSettings.Ports[port+"/tcp"]
	if len(bound) != 1 || bound[0].HostIp != "127.0.0.1" {
		t.Fatalf("port %s of %s is published at %v, want once and on 127.0.0.1 only", port, service, bound)
	}
	return bound[0].HostIp + ":" + bound[0].HostPort
}

// network is the name of the network of the project's containers.
func (p *project) network(t *testing.T) string {
	t.Helper()
	networks := slices.Collect(maps.Keys(inspect(t, p.containerID(t, p.bridge())).NetworkSettings.Networks))
	if len(networks) != 1 {
		t.Fatalf("%s is in networks %q, want one", p.bridge(), networks)
	}
	return networks[0]
}

// crash ends the program of a service as a failure of its own would, and waits until the engine has
// started it again. The engine does not start what it was asked to kill.
func (p *project) crash(t *testing.T, service string) {
	t.Helper()
	id := p.containerID(t, service)
	run(t, "docker", "run", "--rm", "--network=none", "--pid=container:"+id, "appbridge-test/quit")
	suite.Eventually(t, suite.Patience, service+" runs again", func() error {
		if c := inspect(t, id); c.RestartCount != 1 || !c.State.Running {
			return fmt.Errorf("restarts %d, running %t, exit code %d", c.RestartCount, c.State.Running, c.State.ExitCode)
		}
		return nil
	})
}

// buildImages makes the images of programs that are built here. Grafana is none.
func buildImages(t *testing.T) {
	t.Helper()
	server, err := testenv.NATSServer()
	if err != nil {
		t.Fatal(err)
	}
	buildImage(t, imageOf(t, "nats"), server, "")
	for _, name := range []string{"relay", "quit"} {
		buildImage(t, "appbridge-test/"+name, buildProgram(t, name, "./testdata/compose/"+name), "")
	}
	// As the published image: that user, and a folder that a new volume takes over from it.
	buildImage(t, imageOf(t, "prom/prometheus"),
		buildProgram(t, "prometheus", "-modfile=.ci/prometheus.mod", "-tags=remove_all_sd", "github.com/prometheus/prometheus/cmd/prometheus"),
		`USER 65534:65534
COPY --chown=65534:65534 data /prometheus
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
`)
}

// buildProgram builds a static binary; it takes minutes the first time.
func buildProgram(t *testing.T, name string, args ...string) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), name)
	all := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", binary}, args...) // as the servers are built
	if _, err := output(t.Context(), []string{"CGO_ENABLED=0", "GOOS=linux"}, "go", all...); err != nil {
		t.Fatal(err)
	}
	return binary
}

// imageOf is the image of a repository that docker-compose.yaml names.
func imageOf(t *testing.T, repository string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docker-compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`image: (` + repository + `:\S+)`).FindSubmatch(text)
	if image == nil {
		t.Fatalf("docker-compose.yaml has no image of %s", repository)
	}
	return string(image[1])
}

// buildImage makes an image of one static binary and more lines of its Dockerfile, and removes it at
// the end. An image of that name that exists already is used and kept.
func buildImage(t *testing.T, image, binary, more string) {
	t.Helper()
	if _, err := output(t.Context(), nil, "docker", "image", "inspect", image); err == nil {
		t.Logf("image %s exists already", image)
		return
	}
	dir, name := t.TempDir(), filepath.Base(binary)
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	dockerfile := fmt.Sprintf("FROM scratch\nCOPY %[1]s /bin/%[1]s\nENTRYPOINT [\"/bin/%[1]s\"]\n%[2]s", name, more)
	for file, content := range map[string][]byte{name: program, "Dockerfile": []byte(dockerfile)} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "docker", "build", "-t", image, dir)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := output(ctx, nil, "docker", "image", "rm", image); err != nil {
			t.Error(err)
		}
	})
}
