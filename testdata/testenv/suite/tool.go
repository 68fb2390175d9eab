package suite

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// tools are paths by name.
var tools sync.Map

// Tool is the path of the tool that the file NAME.mod of .ci, below root, pins. The first use builds
// it, as make builds it (`go tool` knows no -trimpath), and Go's cache keeps it.
func Tool(tb testing.TB, root, name string) string {
	tb.Helper()
	if path, ok := tools.Load(name); ok {
		return path.(string)
	}
	var path string
	// A run that links removes what it linked. The next one finds it in the cache.
	for range 2 {
		cmd := exec.CommandContext(tb.Context(), "go", "run", "-trimpath", "-modfile=.ci/"+name+".mod", "-exec", "echo", "tool")
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		out, err := cmd.Output()
		if err != nil {
			tb.Fatalf("build the tool %s: %v", name, err)
		}
		path = strings.TrimSpace(string(out))
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	tools.Store(name, path)
	return path
}
