package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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

// project is docker-compose.yaml with this test's addition, under a name of its own.
type project struct {
	command []string // docker compose, in whichever form there is
	env     []string
}

func newProject(t *testing.T, env ...string) *project {
	t.Helper()
	run(t, "docker", "version", "--format", "{{.Server.Version}}") // an engine answers
	p := &project{
		command: composeCommand(t),
		env:     append(env, fmt.Sprintf("COMPOSE_PROJECT_NAME=appbridge-test-%d", os.Getpid())),
	}
	t.Logf("compose is %s, version %s", strings.Join(p.command, " "), p.compose(t, "version", "--short"))
	return p
}

// composeCommand prefers what is installed; a machine that has only an engine
// gets the version pinned in .ci, which takes minutes the first time.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if command := strings.Fields(os.Getenv("COMPOSE")); len(command) > 0 {
		return command
	}
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if _, err := output(t.Context(), nil, command[0], append(command[1:], "version")...); err == nil {
			return command
		}
	}
	t.Log("no compose is installed: building the pinned one")
	return []string{"go", "tool", "-modfile=.ci/compose.mod", "github.com/docker/compose/v2/cmd"}
}

func (p *project) try(ctx context.Context, args ...string) (string, error) {
	files := []string{"-f", "docker-compose.yaml", "-f", "testdata/compose/compose.test.yaml"}
	return output(ctx, p.env, p.command[0], slices.Concat(p.command[1:], files, args)...)
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
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
	}
	NetworkSettings struct {
		Ports map[string][]struct{ HostIp, HostPort string }
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

// buildImage makes an image of one static binary, built from a package of this
// module's build list, and removes the image at the end. An image of that name
// that is there already is used, and left alone.
func buildImage(t *testing.T, image, entrypoint, pkg string) {
	t.Helper()
	if _, err := output(t.Context(), nil, "docker", "image", "inspect", image); err == nil {
		t.Logf("image %s is there already", image)
		return
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, entrypoint)
	if _, err := output(t.Context(), []string{"CGO_ENABLED=0", "GOOS=linux"},
		"go", "build", "-buildvcs=false", "-o", binary, pkg); err != nil {
		t.Fatal(err)
	}
	dockerfile := fmt.Sprintf("FROM scratch\nCOPY %[1]s /%[1]s\nENTRYPOINT [\"/%[1]s\"]\n", entrypoint)
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
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
