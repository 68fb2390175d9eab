package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// The exit codes of watch beyond those of every command.
const (
	exitTimeout   = 3
	exitAppFailed = 4
	exitNoApp     = 5
)

// watchConnectTimeout bounds the first connection of watch, whose --timeout is for apps.
const watchConnectTimeout = 10 * time.Second

// knownStatuses are the words of subjects.HeaderAppStatus that bridges of this version write.
var knownStatuses = []string{"ACTIVE", "PENDING", "FAILED", "STOPPED"}

func watchCommand() *cobra.Command {
	shown := &shownTerminal{}
	return configured(config.Watch, &cobra.Command{
		Use: "watch [flags] [project[/domain[/app]]]", Short: "Show apps and their changes, or wait for one",
		Long: `Shows the apps of the bucket and then every change, from the event stream. On a terminal
it is a table that is drawn again; elsewhere a table, and a line for each event after it. It
needs NATS alone: no bridge has to run, and no cluster is contacted.

It takes the same variables (--nats-url: APPBRIDGE_NATS_URL) and configuration file as serve
and ignores what only serve needs.`,
		Example: `  appbridge watch                                    # every app
  appbridge watch shop/production --status FAILED    # of one project and domain
  appbridge watch shop --events                      # a line for each event
  appbridge watch shop --once -o json | jq .apps[].app
  appbridge watch shop/production/search --until ACTIVE --generation 3 --timeout 5m
  appbridge watch shop/production/search --since 2h  # what happened, and what happens
  appbridge watch shop --at 2026-11-21T08:51:07Z     # what the apps were`,
	}, `Exit codes: 0 when the state of --until has come, at the end of what --once and --at print,
and after Ctrl-C without any of the three; 1 on a failure; 2 when the command line or the
configuration is wrong; 3 when --timeout was over; 4 when the app that --until waits for has
FAILED; 5 when it was deleted, or when the only app that --once or --at want does not exist;
130 when a signal ended --until, --once or --at.`, shown.exit(exitInterrupted), shown.watchApps)
}

// shownTerminal is the terminal of the live table, which every exit of the process has to give back.
type shownTerminal struct {
	at atomic.Pointer[watch.Terminal]
}

// exit gives the terminal back and ends the process.
func (s *shownTerminal) exit(code int) func() {
	return func() {
		if t := s.at.Load(); t != nil {
			t.Release()
		}
		os.Exit(code)
	}
}

func (s *shownTerminal) watchApps(ctx context.Context, cfg config.Config, log *zap.Logger, stdout, stderr io.Writer) int {
	interrupted := exitOK
	if w := cfg.Watch; w.Until != "" || w.Once || !w.At.IsZero() {
		interrupted = exitInterrupted // what was wanted has not come, or is not complete
	}
	warnOfUnknownStatuses(cfg.Watch, stderr)
	defer killWhenStuck(ctx, logsStopGrace, s.exit(interrupted))()
	err := s.watchAndPrint(ctx, cfg, log, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE) && cfg.Watch.Until == "":
		return exitOK // the reader of standard output may have seen enough
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return interrupted
	}
	// It may have the name or the message of an app.
	printf(stderr, "appbridge: %s\n", appview.Safe(strings.ReplaceAll(err.Error(), "\n", "; ")))
	for code, known := range map[int]error{exitTimeout: watch.ErrTimeout, exitAppFailed: watch.ErrFailed, exitNoApp: watch.ErrGone} {
		if errors.Is(err, known) {
			return code
		}
	}
	return exitFailure
}

// warnOfUnknownStatuses finds words that are mistyped, or of a bridge of a newer version.
func warnOfUnknownStatuses(w config.WatchOptions, stderr io.Writer) {
	words := w.Statuses
	if w.Until != "" && w.Until != config.Deleted {
		words = append(slices.Clone(words), w.Until)
	}
	for _, word := range words {
		if !slices.Contains(knownStatuses, word) {
			printf(stderr, "appbridge: unknown status %s: bridges of this version write %s\n", word, strings.Join(knownStatuses, ", "))
		}
	}
}

// watchAndPrint connects and shows apps until it is done.
func (s *shownTerminal) watchAndPrint(ctx context.Context, cfg config.Config, log *zap.Logger, stdout, stderr io.Writer) error {
	opts := watchOptions(cfg, stdout)
	out := watch.Output{Lines: stdout, Notes: stderr, Now: time.Now}
	if f, ok := stdout.(*os.File); ok && isTerminal(stdout) && os.Getenv("TERM") != "dumb" && opts.Live() {
		out.Terminal = watch.OpenTerminal(f, isTerminal(os.Stdin))
		out.Terminal.Color = opts.Color
		defer out.Terminal.Close()
		s.at.Store(out.Terminal)
		if isTerminal(stderr) {
			log = zap.NewNop() // its lines would stand in the table, which shows the connection
		}
	}
	link, err := connectCommand(ctx, cfg, log, "appbridge watch", min(cfg.Timeout, watchConnectTimeout))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	defer link.Close(false)
	js, err := jetstream.New(link.NATS)
	if cfg.JetStreamDomain != "" {
		js, err = jetstream.NewWithDomain(link.NATS, cfg.JetStreamDomain)
	}
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	out.Down = func() string { return connectionDown(link) }
	err = watch.Run(ctx, js, opts, out)
	if failure := link.Err(); failure != nil && err != nil && ctx.Err() == nil {
		return failure
	}
	return err
}

// connectionDown is why there is no connection, empty while there is one.
func connectionDown(link *natsconn.Conn) string {
	switch {
	case link.NATS.IsConnected():
		return ""
	case link.Reason() != "":
		return link.Reason()
	default:
		return "NATS is unavailable"
	}
}

// watchOptions are those of the room, from the configuration.
func watchOptions(cfg config.Config, stdout io.Writer) watch.Options {
	w := cfg.Watch
	opts := watch.Options{
		Reader: appwatch.Options{
			Prefix: cfg.Prefix, Stream: cfg.Stream, Bucket: cfg.Bucket, BucketStream: w.BucketStream, HeadersOnly: w.HeadersOnly,
			Project: w.Project, Domain: w.Domain, App: w.App, Statuses: w.Statuses, Latest: w.Latest, From: w.From, Since: cfg.SinceTime,
		},
		Form: map[config.Output]watch.Form{
			config.OutputTable: watch.Table, config.OutputWide: watch.Wide, config.OutputJSON: watch.JSON, config.OutputYAML: watch.YAML, config.OutputName: watch.Name,
		}[w.Output],
		Events: w.Events, Once: w.Once, At: w.At, Timeout: cfg.Timeout, Color: colored(cfg.Color, isTerminal(stdout)),
	}
	for _, kind := range w.Kinds {
		opts.Reader.Kinds = append(opts.Reader.Kinds, subjects.EventKind(kind))
	}
	if cfg.Since > 0 {
		opts.Reader.Since = time.Now().Add(-cfg.Since)
	}
	if w.Until != "" {
		opts.Until = &watch.Until{Status: w.Until, Generation: w.Generation, ResourceVersion: w.ResourceVersion, UID: w.UID, AllowFailed: w.AllowFailed}
	}
	return opts
}
