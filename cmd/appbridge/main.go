// Command appbridge turns the Knative Services that Flyte manages into app events on a NATS
// JetStream stream and a snapshot in a key-value bucket, and prints the logs of apps.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	// The CA certificates for a machine that has none, as in a container image without files.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/appbridge/appbridge/bridge/natsconn"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program without its process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(args, stdout, stderr)
	err := root.ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	}
	printf(stderr, "appbridge: %s\nRun 'appbridge --help' for usage.\n", strings.TrimSpace(natsconn.RedactURLs(err.Error())))
	return exitUsage
}
