package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

func TestLogFormat(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	file, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, test := range []struct {
		name, got, want string
	}{
		{"auto, not a file", resolveLogFormat("auto", &bytes.Buffer{}), "json"},
		{"auto, a file", resolveLogFormat("auto", file), "json"},
		{"auto, a device that is no terminal", resolveLogFormat("auto", null), "json"},
		{"console", resolveLogFormat("console", file), "console"},
		{"json", resolveLogFormat("json", null), "json"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, test.got, test.want)
		}
	}
}

// logWithLibraries logs through each library to stdout, as in a new process:
// controller-runtime keeps the first logger it is given.
func logWithLibraries() {
	log, err := newLogger("info", "json", os.Stdout)
	if err != nil {
		panic(err)
	}
	routeLibraryLogs(log)
	klog.InfoS("from klog", "n", 1)
	klog.V(1).InfoS("detail")
	ctrllog.Log.Info("from controller-runtime", "n", 2)
}

func TestLibraryLogs(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program)
	command.Env = []string{asProgram + "=" + beLogger}
	written, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(written)), "\n")
	if got, want := len(lines), 2; got != want {
		t.Fatalf("got %d lines, want %d:\n%s", got, want, written)
	}
	for i, want := range []map[string]any{
		{"level": "info", "logger": "client-go", "msg": "from klog", "n": 1.0},
		{"level": "info", "logger": "controller-runtime", "msg": "from controller-runtime", "n": 2.0},
	} {
		got := map[string]any{}
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatal(err)
		}
		for key := range want {
			if got[key] != want[key] {
				t.Errorf("%s: got %v, want %v", key, got[key], want[key])
			}
		}
		if _, ok := got["time"].(string); !ok {
			t.Errorf("got no time in %s", lines[i])
		}
	}
}
