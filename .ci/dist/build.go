package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// build builds the static binary of a platform. What the environment could change in it is fixed,
// and the Go is the one that runs this program.
func (s source) build(ctx context.Context, p v1.Platform, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", fmt.Sprintf("-s -w -X main.version=%s -X main.commit=%s", s.version, s.revision), "-o", path, "./cmd/appbridge")
	build.Dir = s.root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off", "GOTOOLCHAIN="+runtime.Version())
	if err := runs(build); err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	if info.GoVersion != runtime.Version() {
		return fmt.Errorf("%s was built by %s, want %s", path, info.GoVersion, runtime.Version())
	}
	return os.Chmod(path, 0o755)
}

// manifest copies the manifest for `kubectl apply`.
func (s source) manifest(out string) error {
	text, err := os.ReadFile(filepath.Join(s.root, "deploy", "appbridge.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "appbridge.yaml"), text, 0o644)
}

// writeSums writes the checksums of a folder's files, in the form that `sha256sum -c` reads.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// runs runs a command; the error has what it wrote.
func runs(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}
