// Command dist builds what a release consists of, with the same bytes for the same commit on every
// machine: static binaries, a container image for two platforms, the Helm chart, the manifest and
// their checksums. `make dist` and `make image` run it.
//
//	dist release --root DIR --out DIR --version V --revision COMMIT --created SECONDS
//	dist image   --root DIR --out FILE --tag NAME:TAG ...
//
// An archive is an OCI image layout in a tar file, for registries. It also has the manifest.json
// of `docker save`, so that `docker load` of every version reads it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// source is the tree that everything is made from.
type source struct {
	root              string
	version, revision string
	created           time.Time // stands for every time in what is written
}

var errUsage = errors.New("usage: dist release|image --root DIR --out PATH --version V --revision COMMIT --created SECONDS [--tag NAME]")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	command, flags := args[0], flag.NewFlagSet("dist "+args[0], flag.ContinueOnError)
	var s source
	flags.StringVar(&s.root, "root", ".", "the repository")
	flags.StringVar(&s.version, "version", "", "version of the program")
	flags.StringVar(&s.revision, "revision", "", "commit of the tree")
	created := flags.Int64("created", -1, "time of the commit, in seconds since 1970 (SOURCE_DATE_EPOCH)")
	tag := flags.String("tag", "appbridge/appbridge", "name of the image; `dist release` adds the version and the platform")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "platforms of a release; the image has those of Linux")
	out := flags.String("out", "", "what to write: a new folder (release), or a file (image)")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var missing []error
	for _, name := range []string{"version", "revision", "out", "tag"} {
		if flags.Lookup(name).Value.String() == "" {
			missing = append(missing, fmt.Errorf("--%s is empty", name))
		}
	}
	if *created < 0 {
		missing = append(missing, fmt.Errorf("--created is %d, want the seconds since 1970", *created))
	}
	if err := errors.Join(missing...); err != nil {
		return err
	}
	s.created = time.Unix(*created, 0).UTC()
	switch command {
	case "release":
		return s.release(ctx, strings.Split(*platforms, ","), *tag, *out)
	case "image":
		return s.localImage(ctx, withTag(*tag), *out)
	default:
		return fmt.Errorf("command %q: %w", command, errUsage)
	}
}

// release writes everything into a new folder.
func (s source) release(ctx context.Context, platforms []string, name, out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	var images []image
	for _, platform := range platforms {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return fmt.Errorf("--platforms: %w", err)
		}
		binary := filepath.Join(out, "appbridge-"+p.OS+"-"+p.Architecture)
		if err := s.build(ctx, *p, binary); err != nil {
			return err
		}
		if p.OS != "linux" {
			continue
		}
		// Docker without platforms in its store reads both: each needs a name of its own.
		img, err := s.image(*p, binary, name+":"+s.version+"-"+p.Architecture)
		if err != nil {
			return err
		}
		images = append(images, img)
	}
	if err := s.writeArchive(filepath.Join(out, "appbridge-image.tar"), name+":"+s.version, images); err != nil {
		return err
	}
	if err := s.chart(ctx, out); err != nil {
		return err
	}
	if err := s.manifest(out); err != nil {
		return err
	}
	return writeSums(out)
}

// localImage writes the image for this machine's engine.
func (s source) localImage(ctx context.Context, tag, out string) error {
	dir, err := os.MkdirTemp("", "appbridge-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, binary := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, filepath.Join(dir, "appbridge")
	if err := s.build(ctx, p, binary); err != nil {
		return err
	}
	img, err := s.image(p, binary, tag)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return s.writeArchive(out, tag, []image{img})
}
