package kubesuite

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// Build writes appbridge, as it is in this tree, to a file. `go run` keeps what it links in Go's
// cache, which `go build` does not: only the first of all tests links.
func Build(ctx context.Context, path string) error {
	root, err := testenv.Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "-trimpath", "-buildvcs=false", "-exec", "cp", "./cmd/appbridge", path)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off") // the tests may be of a nested module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build appbridge: %w\n%s", err, out)
	}
	return nil
}
