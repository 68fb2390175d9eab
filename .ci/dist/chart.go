package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// chartDir is the folder of the Helm chart in the repository.
var chartDir = filepath.Join("deploy", "chart", "appbridge")

// chart packages the Helm chart with the program's version as its appVersion, which is the tag of
// the image by default.
func (s source) chart(ctx context.Context, out string) error {
	dir, err := os.MkdirTemp("", "appbridge-chart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	helm := exec.CommandContext(ctx, "go", "run", "-trimpath", "-modfile=.ci/helm.mod", "helm.sh/helm/v3/cmd/helm", "package", chartDir,
		"--app-version", s.version, "--version", chartVersion(s.version), "--destination", dir)
	helm.Dir, helm.Env = s.root, append(os.Environ(), "CGO_ENABLED=0")
	if err := runs(helm); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil {
		return err
	}
	if len(packages) != 1 {
		return fmt.Errorf("helm package wrote %q, want one chart", packages)
	}
	if err := s.repack(packages[0], filepath.Join(out, filepath.Base(packages[0]))); err != nil {
		return fmt.Errorf("repack %s: %w", packages[0], err)
	}
	return nil
}

// chartVersion is the semantic version that Helm demands of a chart. A build of a commit without a
// tag comes before every release.
func chartVersion(version string) string {
	if number := strings.TrimPrefix(version, "v"); semantic.MatchString(number) {
		return number
	}
	return "0.0.0-g" + notSemantic.ReplaceAllString(version, "-")
}

var (
	semantic    = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
	notSemantic = regexp.MustCompile(`[^0-9A-Za-z-]`)
)

// repack writes Helm's archive again: Helm records the time of packaging and the modes of the
// files of this clone.
func (s source) repack(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	unzip, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close() // a second time where nothing failed
	zip := gzip.NewWriter(out)
	zip.Extra, zip.Comment = unzip.Extra, unzip.Comment
	r, w := tar.NewReader(unzip), tar.NewWriter(zip)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := s.add(w, header.Name, 0o644, content); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), zip.Close(), out.Chmod(0o644)); err != nil {
		return err
	}
	return out.Close()
}
