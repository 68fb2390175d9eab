package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is a number because the image has no /etc/passwd, and because Kubernetes can check
// runAsNonRoot of a number only.
const user = "65532:65532"

// image is the image of one platform.
type image struct {
	v1.Image
	platform v1.Platform
	tag      string // of `docker load`
}

func (s source) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "appbridge",
		"org.opencontainers.image.description": "Publishes Flyte apps (Knative Services) to NATS JetStream",
		"org.opencontainers.image.source":      "https://github.com/appbridge/appbridge",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.revision":    s.revision,
		"org.opencontainers.image.created":     s.created.Format(time.RFC3339),
	}
}

// image makes an image of one file, the binary. The CA certificates are compiled into that.
func (s source) image(p v1.Platform, binary, tag string) (image, error) {
	compressed, err := s.layer(binary)
	if err != nil {
		return image{}, fmt.Errorf("layer of %s: %w", binary, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(compressed)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return image{}, err
	}
	created := v1.Time{Time: s.created}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: created, CreatedBy: "appbridge " + s.version},
	})
	if err != nil {
		return image{}, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return image{}, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.OS, p.Architecture, created
	config.Config = v1.Config{
		User: user, Entrypoint: []string{"/appbridge"}, Cmd: []string{"serve"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}}, Labels: s.labels(),
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return image{}, err
	}
	return image{Image: img, platform: p, tag: tag}, nil
}

// layer is the compressed layer with the binary.
func (s source) layer(binary string) ([]byte, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	w := tar.NewWriter(zip)
	if err := s.add(w, "appbridge", 0o755, content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return compressed.Bytes(), nil
}

// add adds a file to an archive. Its owner is root.
func (s source) add(w *tar.Writer, name string, mode int64, content []byte) error {
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: s.created, Format: tar.FormatUSTAR,
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// dockerImage is an entry of the manifest.json of `docker save`.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeArchive writes images of one name, for several platforms, as one archive.
func (s source) writeArchive(path, name string, images []image) error {
	dir, err := os.MkdirTemp("", "appbridge-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var docker []dockerImage
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: img.Image, Descriptor: v1.Descriptor{Platform: &img.platform}})
		manifest, err := img.Manifest()
		if err != nil {
			return err
		}
		entry := dockerImage{Config: blob(manifest.Config.Digest), RepoTags: []string{img.tag}}
		for _, l := range manifest.Layers {
			entry.Layers = append(entry.Layers, blob(l.Digest))
		}
		docker = append(docker, entry)
	}
	all, ok := mutate.Annotations(all, s.labels()).(v1.ImageIndex)
	if !ok {
		return fmt.Errorf("annotated index is a %T", all)
	}
	// One entry at the top: tools that copy an archive want no choice.
	top := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: all, Descriptor: v1.Descriptor{Annotations: map[string]string{
			"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:],
			"io.containerd.image.name":          qualified(name),
		}},
	})
	if _, err := layout.Write(dir, top); err != nil {
		return err
	}
	text, err := json.Marshal(docker)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600); err != nil {
		return err
	}
	return s.archive(dir, path)
}

func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// archive writes the files of a folder into a tar file, in the order of their names.
func (s source) archive(dir, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close() // a second time where nothing failed
	var names []string
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	w := tar.NewWriter(file)
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := s.add(w, name, 0o644, content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	return file.Close()
}

// withTag is an image's name with a tag: latest, unless it has one.
func withTag(name string) string {
	if strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
		return name
	}
	return name + ":latest"
}

// qualified is an image's name with its registry, which containerd wants: Docker's, unless the name
// has one.
func qualified(name string) string {
	first, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return name
	default:
		return "docker.io/" + name
	}
}
