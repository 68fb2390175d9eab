package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const (
	testVersion  = "v1.2.3"
	testRevision = "0123456789abcdef0123456789abcdef01234567"
	testCreated  = 1700000000
)

// parts are what a release is made from.
var parts = []string{"cmd", "bridge", "logsvc", "subjects", "deploy", ".ci", "go.mod", "go.sum"}

// copyTree copies the parts of this repository.
func copyTree(t *testing.T, to string) {
	t.Helper()
	for _, part := range parts {
		err := filepath.WalkDir(filepath.Join("..", "..", part), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(filepath.Join("..", ".."), path)
			if err != nil {
				return err
			}
			if entry.IsDir() {
				return os.MkdirAll(filepath.Join(to, name), 0o755)
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(to, name), content, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Two copies of one tree, in different folders, by users with another umask and time zone, give
// the same release. Then the test looks into its image.
func TestSameBytes(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "dist")
	if err := runs(exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")); err != nil {
		t.Fatal(err)
	}
	var outs, sums []string
	for _, place := range []struct{ folder, umask, zone string }{
		{"one", "022", "UTC"}, {filepath.Join("another", "clone"), "077", "Asia/Kolkata"},
	} {
		root := filepath.Join(dir, place.folder)
		copyTree(t, root)
		out := filepath.Join(root, "dist")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask "$1" && shift && exec "$@"`, "sh", place.umask,
			program, "release", "--root", root, "--out", out, "--platforms", "linux/amd64,linux/arm64",
			"--version", testVersion, "--revision", testRevision, "--created", fmt.Sprint(testCreated))
		cmd.Env = append(os.Environ(), "TZ="+place.zone)
		if err := runs(cmd); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		outs, sums = append(outs, out), append(sums, string(text))
	}
	if sums[0] != sums[1] {
		t.Errorf("the checksums of two copies are\n%s\nand\n%s", sums[0], sums[1])
	}
	for _, name := range []string{
		"appbridge-1.2.3.tgz", "appbridge-image.tar", "appbridge-linux-amd64", "appbridge-linux-arm64", "appbridge.yaml",
	} {
		if !strings.Contains(sums[0], "  "+name+"\n") {
			t.Errorf("the checksums lack %s:\n%s", name, sums[0])
		}
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = outs[1]
	if err := runs(check); err != nil {
		t.Error(err)
	}
	checkArchive(t, filepath.Join(outs[0], "appbridge-image.tar"))
}

// checkArchive reads the archive as a registry's tool does, and as Docker does.
func checkArchive(t *testing.T, archive string) {
	t.Helper()
	dir := t.TempDir()
	extract(t, archive, dir)
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has %d entries, want one index", len(manifest.Manifests))
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	machines := map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}
	var got []string
	for _, entry := range manifest.Manifests {
		img, err := index.Image(entry.Digest)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry.Platform.String())
		checkImage(t, img, *entry.Platform, machines[entry.Platform.String()])
		docker, err := tarball.ImageFromPath(archive, tagOf(t, entry.Platform.Architecture))
		if err != nil {
			t.Errorf("docker load: %v", err)
			continue
		}
		checkImage(t, docker, *entry.Platform, machines[entry.Platform.String()])
	}
	if want := slices.Sorted(maps.Keys(machines)); !slices.Equal(got, want) {
		t.Errorf("the index has platforms %q, want %q", got, want)
	}
}

// checkImage fails unless an image is the static program of a platform and nothing else.
func checkImage(t *testing.T, img v1.Image, p v1.Platform, machine elf.Machine) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != p.OS || config.Architecture != p.Architecture || config.Created.Unix() != testCreated {
		t.Errorf("%s: the configuration is of %s/%s, created at %s", p, config.OS, config.Architecture, config.Created)
	}
	if got := config.Config.User; got != "65532:65532" {
		t.Errorf("%s: the user is %q, want 65532:65532", p, got)
	}
	if got, want := slices.Concat(config.Config.Entrypoint, config.Config.Cmd), []string{"/appbridge", "serve"}; !slices.Equal(got, want) {
		t.Errorf("%s: it runs %q, want %q", p, got, want)
	}
	for label, want := range map[string]string{
		"title": "appbridge", "version": testVersion, "revision": testRevision, "created": "2023-11-14T22:13:20Z",
		"source": "https://github.com/appbridge/appbridge", "licenses": "Apache-2.0",
		"description": "Publishes Flyte apps (Knative Services) to NATS JetStream",
	} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("%s: label %s is %q, want %q", p, label, got, want)
		}
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%s: %d layers, %v, want one", p, len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	files := tar.NewReader(content)
	header, err := files.Next()
	if err != nil || header.Name != "appbridge" || header.Mode != 0o755 || header.Uid != 0 {
		t.Fatalf("%s: the first file is %+v, %v", p, header, err)
	}
	binary, err := io.ReadAll(files)
	if err != nil {
		t.Fatal(err)
	}
	if header, err := files.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("%s: there is also %+v, %v", p, header, err)
	}
	program, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	if program.Machine != machine {
		t.Errorf("%s: the program is for %s", p, program.Machine)
	}
	for _, section := range program.Progs {
		if section.Type == elf.PT_INTERP || section.Type == elf.PT_DYNAMIC {
			t.Errorf("%s: the program is not static: %s", p, section.Type)
		}
	}
}

// Helm's archive of one chart has the same bytes after repack, whenever Helm wrote it, and keeps
// Helm's mark and the files.
func TestRepack(t *testing.T) {
	var got [][]byte
	s := source{created: time.Unix(testCreated, 0).UTC()}
	for i, mode := range []int64{0o600, 0o644} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from.tgz"), filepath.Join(dir, "to.tgz")
		var archive bytes.Buffer
		zip := gzip.NewWriter(&archive)
		zip.Comment, zip.ModTime = "Helm", time.Unix(int64(i+1), 0)
		w := tar.NewWriter(zip)
		err := w.WriteHeader(&tar.Header{Name: "appbridge/Chart.yaml", Mode: mode, Size: 2, ModTime: time.Unix(int64(i), 0)})
		if err == nil {
			_, err = w.Write([]byte("a\n"))
		}
		if err := errors.Join(err, w.Close(), zip.Close(), os.WriteFile(from, archive.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := s.repack(from, to); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, content)
	}
	if !bytes.Equal(got[0], got[1]) {
		t.Error("the bytes differ")
	}
	unzip, err := gzip.NewReader(bytes.NewReader(got[0]))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(unzip)
	header, err := r.Next()
	if err != nil || header.Name != "appbridge/Chart.yaml" || header.ModTime.Unix() != testCreated || unzip.Comment != "Helm" {
		t.Errorf("the archive has %+v, comment %q, %v", header, unzip.Comment, err)
	}
	if content, err := io.ReadAll(r); string(content) != "a\n" {
		t.Errorf("the file has %q, %v", content, err)
	}
}

// TestIncomplete: a release without its chart or its manifest is an error.
func TestIncomplete(t *testing.T) {
	s := source{root: t.TempDir(), version: testVersion}
	if err := s.chart(t.Context(), t.TempDir()); err == nil {
		t.Error("no chart: got no error")
	}
	if err := s.manifest(t.TempDir()); err == nil {
		t.Error("no manifest: got no error")
	}
}

func TestBadArguments(t *testing.T) {
	good := []string{"release", "--version", "v1", "--revision", "abc", "--created", "1", "--out", t.TempDir()}
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "usage: dist"},
		{"unknown command", append([]string{"publish"}, good[1:]...), `command "publish": usage: dist`},
		{"no version", append(slices.Clone(good), "--version", ""), "--version is empty"},
		{"no revision", append(slices.Clone(good), "--revision", ""), "--revision is empty"},
		{"nothing in order", []string{"release", "--tag", ""}, "--version is empty\n--revision is empty\n--out is empty\n--tag is empty\n--created is -1"},
		{"no time", append(slices.Clone(good), "--created", "-1"), "--created is -1"},
		{"a folder that exists", good, "file exists"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := run(t.Context(), test.args); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for _, test := range []struct{ name, tagged, qualified string }{
		{"appbridge:dev", "appbridge:dev", "docker.io/library/appbridge:dev"},
		{"appbridge/appbridge", "appbridge/appbridge:latest", "docker.io/appbridge/appbridge"},
		{"registry.example:5000/bridge", "registry.example:5000/bridge:latest", "registry.example:5000/bridge"},
		{"localhost/bridge:1", "localhost/bridge:1", "localhost/bridge:1"},
	} {
		if got := withTag(test.name); got != test.tagged {
			t.Errorf("%s: with a tag: got %s, want %s", test.name, got, test.tagged)
		}
		if got := qualified(test.name); got != test.qualified {
			t.Errorf("%s: qualified: got %s, want %s", test.name, got, test.qualified)
		}
	}
}

func TestChartVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabc": "1.2.3-4-gabc",
		"012345678901": "0.0.0-g012345678901", "9e714be-dirty": "0.0.0-g9e714be-dirty", "v1.2": "0.0.0-gv1-2",
	} {
		if got := chartVersion(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}

// tagOf is the name under which `docker load` knows an architecture's image.
func tagOf(t *testing.T, architecture string) *name.Tag {
	t.Helper()
	tag, err := name.NewTag("appbridge/appbridge:" + testVersion + "-" + architecture)
	if err != nil {
		t.Fatal(err)
	}
	return &tag
}

// extract unpacks a tar file.
func extract(t *testing.T, archive, dir string) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, header.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}
