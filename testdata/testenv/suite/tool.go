package suite

import (
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// tools are paths by name.
var tools sync.Map

// Tool is the path of a tool that a file of .ci, below root, pins. The first use builds it.
func Tool(tb testing.TB, root, name string) string {
	tb.Helper()
	if path, ok := tools.Load(name); ok {
		return path.(string)
	}
	cmd := exec.CommandContext(tb.Context(), "go", "tool", "-n", "-modfile=.ci/"+name+".mod", name)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("go tool %s: %v", name, err)
	}
	path := strings.TrimSpace(string(out))
	tools.Store(name, path)
	return path
}
