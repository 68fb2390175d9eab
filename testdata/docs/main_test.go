// Package docs_test runs what README.md and docs/ show: every command, every error of the start with
// its repair, every link.
package docs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// cluster is shared by the tests; the first that needs it starts it.
var cluster kubesuite.Cluster

// tools is a folder with the programs that the pages use.
var tools struct {
	once sync.Once
	dir  string
	err  error
}

// toolsDir is a folder with appbridge, as it is now, nats, jq and kubectl.
func toolsDir(t *testing.T) string {
	t.Helper()
	tools.once.Do(func() { tools.err = makeTools() })
	if tools.err != nil {
		t.Fatal(tools.err)
	}
	return tools.dir
}

func makeTools() (err error) {
	if tools.dir, err = os.MkdirTemp("", "appbridge-docs-"); err != nil {
		return err
	}
	built, err := testenv.BinDir()
	if err != nil {
		return err
	}
	for _, name := range []string{"nats", "jq", "kubectl"} {
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(tools.dir, name)); err != nil {
			return err
		}
	}
	return kubesuite.Build(context.Background(), filepath.Join(tools.dir, "appbridge"))
}

func TestMain(m *testing.M) {
	suite.Main(m, func() error {
		var err error
		if tools.dir != "" {
			err = os.RemoveAll(tools.dir)
		}
		return errors.Join(err, cluster.Stop())
	})
}
