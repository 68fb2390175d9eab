package compose

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// anyKubeconfig is a file for tests that start no container.
func anyKubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte("clusters:\n- cluster:\n    server: https://kubernetes:6443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestInit checks what a user without preparation is shown, and what init.sh writes.
func TestInit(t *testing.T) {
	p := newProject(t, "single", anyKubeconfig(t))
	written := p.readEnv(t)
	info, err := os.Stat(filepath.Join(p.dir, ".env"))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf(".env has mode %o, want 600", got)
	}
	if got := p.init(t, anyKubeconfig(t)); !strings.Contains(got, ".env exists and is kept") {
		t.Errorf("init.sh again: got %q", got)
	}
	if got := p.readEnv(t); got != written {
		t.Errorf("init.sh changed .env from\n%s\nto\n%s", written, got)
	}
	if other := newProject(t, "single", anyKubeconfig(t)).readEnv(t); password(other) == password(written) {
		t.Errorf("two runs made the same password %q", password(other))
	}

	if _, err := output(t.Context(), nil, filepath.Join(p.dir, "deploy/compose/init.sh"), "/does/not/exist"); err == nil ||
		!strings.Contains(err.Error(), "kubeconfig /does/not/exist") {
		t.Errorf("init.sh with a kubeconfig that does not exist: got %v, want its name", err)
	}
}

// TestNotPrepared: without init.sh, and without the kubeconfig that it noted, up fails with the
// variable or the file by name, and creates nothing.
func TestNotPrepared(t *testing.T) {
	kubeconfig := anyKubeconfig(t)
	p := newProject(t, "single", kubeconfig, "RELAY_DIR="+t.TempDir(), "NATS_PORT=0", "HTTP_PORT=0", "PROMETHEUS_PORT=0")
	buildImages(t)
	p.removeAtEnd(t)
	if err := os.Remove(kubeconfig); err != nil {
		t.Fatal(err)
	}
	if _, err := p.try(t.Context(), "up", "-d"); err == nil || !strings.Contains(err.Error(), kubeconfig) {
		t.Errorf("up without the kubeconfig: got %v, want the name of the file", err)
	}
	if _, err := os.Stat(kubeconfig); err == nil {
		t.Errorf("up created %s", kubeconfig)
	}

	if err := os.Rename(filepath.Join(p.dir, ".env"), filepath.Join(p.dir, "env")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.try(t.Context(), "up", "-d"); err == nil || !strings.Contains(err.Error(), "run deploy/compose/init.sh") {
		t.Errorf("up without .env: got %v, want what to run", err)
	}
	if err := os.Rename(filepath.Join(p.dir, "env"), filepath.Join(p.dir, ".env")); err != nil {
		t.Fatal(err)
	}
}

func (p *project) init(t *testing.T, kubeconfig string) string {
	t.Helper()
	return run(t, filepath.Join(p.dir, "deploy/compose/init.sh"), kubeconfig)
}

func (p *project) readEnv(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, ".env"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// password is one of the passwords of an .env file.
func password(env string) string {
	_, rest, _ := strings.Cut(env, "ROUTE_PASSWORD=")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}
