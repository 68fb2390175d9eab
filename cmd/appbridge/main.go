// Command appbridge turns the Knative Services that Flyte manages into app
// events on a NATS JetStream stream and a snapshot in a key-value bucket, and
// prints the logs of apps.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// The exit codes of every subcommand.
const (
	exitOK      = 0
	exitFailure = 1 // something went wrong while running
	exitUsage   = 2 // the command line or the configuration is wrong
	// exitInterrupted is that of a comparison that a signal ended, as a shell has it for SIGINT.
	exitInterrupted = 130
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// command is one subcommand. Its run gets the arguments that follow its name.
type command struct {
	name, summary string
	run           func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

func commands() []command {
	return []command{
		{"serve", "watch the cluster and publish app events and the snapshot", serveCommand},
		{"logs", "print and follow the log of an app", logsCommand},
		{"verify", "compare cluster, stream and bucket, and repair them", verifyCommand},
		{"version", "print the version", versionCommand},
	}
}

// run is the program without its process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	name, rest := args[0], args[1:]
	switch name {
	case "-h", "--help", "help":
		if name != "help" || len(rest) == 0 {
			usage(stdout)
			return exitOK
		}
		name, rest = rest[0], []string{"--help"}
	case "--version":
		name = "version"
	}
	known := []string{"help"}
	for _, c := range commands() {
		if c.name == name {
			return c.run(ctx, rest, stdout, stderr)
		}
		known = append(known, c.name)
	}
	if strings.HasPrefix(name, "-") {
		printf(stderr, "appbridge: a command comes first, for example `appbridge serve %s`; `appbridge help` lists the commands\n", redactURLs(name))
		return exitUsage
	}
	printf(stderr, "appbridge: unknown command %q%s; `appbridge help` lists the commands\n", redactURLs(name), didYouMean(name, known))
	return exitUsage
}

func usage(w io.Writer) {
	printf(w, "appbridge publishes the changes of Flyte apps to NATS JetStream, keeps their\ncurrent state in a key-value bucket and serves their logs.\n\nUsage:\n  appbridge <command> [flags]\n\nCommands:\n")
	for _, c := range append(commands(), command{name: "help", summary: "print this text, or with a command its flags"}) {
		printf(w, "  %-9s %s\n", c.name, c.summary)
	}
	printf(w, "\n`appbridge <command> --help` lists the flags of a command.\n")
}

// printf writes to the terminal. A terminal that is gone is nobody to tell.
func printf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
}
