package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version and commit are set by the linker (-ldflags "-X main.version=v1.2.3
// -X main.commit=abcdef"). Empty: what the Go toolchain recorded.
var version, commit string

type buildInfo struct {
	Version, Commit, Go string
}

// currentBuild prefers what the linker was given, then the toolchain's record,
// and falls back to "dev" and "unknown".
func currentBuild() buildInfo {
	b := buildInfo{Version: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(b.Version, strings.TrimPrefix(info.Main.Version, "(devel)"))
		b.Commit = cmp.Or(b.Commit, recordedCommit(info.Settings))
	}
	b.Version, b.Commit = cmp.Or(b.Version, "dev"), cmp.Or(b.Commit, "unknown")
	return b
}

func recordedCommit(settings []debug.BuildSetting) string {
	values := map[string]string{}
	for _, s := range settings {
		values[s.Key] = s.Value
	}
	revision := values["vcs.revision"]
	if revision != "" && values["vcs.modified"] == "true" {
		return revision + "-modified"
	}
	return revision
}

func (b buildInfo) String() string {
	return fmt.Sprintf("appbridge %s\ncommit %s\n%s %s/%s\n", b.Version, b.Commit, b.Go, runtime.GOOS, runtime.GOARCH)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version",
		Long: "Prints the version, the commit it was built from and the Go version.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("version takes no arguments, got %q", args[0])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		Run: func(cmd *cobra.Command, _ []string) {
			printf(cmd.OutOrStdout(), "%s", currentBuild())
		},
	}
}
