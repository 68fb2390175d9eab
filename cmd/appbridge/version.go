package main

import (
	"context"
	"io"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the linker (-ldflags "-X main.version=v1.2.3
// -X main.commit=abcdef"). Empty: what the Go toolchain recorded.
var version, commit string

// buildInfo says which program this is.
type buildInfo struct {
	Version, Commit, Go string
}

// currentBuild prefers what the linker was given, then the toolchain's record,
// and falls back to "dev" and "unknown".
func currentBuild() buildInfo {
	b := buildInfo{Version: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		if b.Commit == "" {
			b.Commit = recordedCommit(info.Settings)
		}
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

func recordedCommit(settings []debug.BuildSetting) string {
	var revision, suffix string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "-modified"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + suffix
}

func versionCommand(_ context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if args[0] == "-h" || args[0] == "--help" {
			printf(stdout, "Usage:\n  appbridge version\n\nPrints the version, the commit it was built from and the Go version.\n")
			return exitOK
		}
		printf(stderr, "appbridge: version takes no arguments, got %q\n", redactURLs(args[0]))
		return exitUsage
	}
	b := currentBuild()
	printf(stdout, "appbridge %s\ncommit %s\n%s %s/%s\n", b.Version, b.Commit, b.Go, runtime.GOOS, runtime.GOARCH)
	return exitOK
}
