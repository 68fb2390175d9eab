package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
)

// logsStopGrace is how long an interrupted command may take to end. A standard output that
// is not read blocks it for ever.
const logsStopGrace = 3 * time.Second

func logsCommand() *cobra.Command {
	return configured(config.Logs, &cobra.Command{
		Use: "logs [flags] project/domain/app", Short: "Print and follow the log of an app",
		Long: `Prints the log of an app, which the log service of a bridge sends over NATS.

Lines go to standard output as they were written, notes of the service
("` + subjects.LogNotePrefix + `…") to standard error. It takes the same variables (--nats-url:
APPBRIDGE_NATS_URL) and configuration file as serve and ignores what only serve needs.`,
		Example: `  appbridge logs shop/production/search                      # the last 1000 lines
  appbridge logs -f --tail 10 shop/production/search         # follow
  appbridge logs --since 1h --include ERROR shop/production/search | less
  appbridge logs -p shop/production/search                   # before the last restart`,
	}, `Exit codes: 0 at the end of the log, when the stream was stopped or has lasted
--max-duration, and after Ctrl-C; 1 when there is no such app, on a failure and when the
stream broke; 2 when the command line or the configuration is wrong.`, exitAtOnce(exitOK), followLogs)
}

func followLogs(ctx context.Context, cfg config.Config, log *zap.Logger, stdout, stderr io.Writer) int {
	defer killWhenStuck(ctx, logsStopGrace, exitAtOnce(exitOK))()
	if err := printLogs(ctx, cfg, log, newLogPrinter(cfg, stdout, stderr)); err != nil {
		printf(stderr, "appbridge: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return exitFailure
	}
	return exitOK
}

// printLogs connects and prints until the log is at its end.
func printLogs(ctx context.Context, cfg config.Config, log *zap.Logger, out *logPrinter) error {
	link, err := connectCommand(ctx, cfg, log, "appbridge logs", cfg.Timeout)
	if err != nil {
		return stoppedOr(ctx, err)
	}
	defer link.Close(false)
	end, err := client.Follow(ctx, link.NATS, logRequest(cfg), out.take)
	failure := link.Err()
	if flushErr := out.lines.Flush(); err == nil {
		err = flushErr
	}
	switch {
	case err == nil:
		out.noteEnd(end.Reason)
		return nil
	case errors.Is(err, syscall.EPIPE):
		return nil // the reader of standard output has seen enough
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil
	case failure != nil:
		return failure
	case errors.Is(err, client.ErrNoAnswer) && errors.Is(link.NATS.LastError(), nats.ErrPermissionViolation):
		return fmt.Errorf("%w: %w", err, link.NATS.LastError())
	case errors.Is(err, client.ErrNoService):
		return fmt.Errorf("%w: no bridge with this prefix is connected to this NATS, or this user may not send to it", err)
	}
	return err
}

// logRequest is the request to the service. Its lines are raw, so that their bytes are
// unchanged: the prefixes are added here.
func logRequest(cfg config.Config) client.Request {
	window := cfg.Window
	if window == 0 {
		window = client.Paced
	}
	return client.Request{
		App: cfg.App, Replica: cfg.Replica, Container: cfg.Container, Tail: cfg.Lines,
		Since: max(cfg.Since, 0), SinceStart: cfg.Since == config.SinceStart, SinceTime: cfg.SinceTime,
		Follow: &cfg.Follow, Previous: cfg.Previous, Timestamps: cfg.Timestamps, Include: cfg.Include, Exclude: cfg.Exclude,
		Format: subjects.LogFormatRaw, MaxDuration: cfg.MaxDuration, Prefix: cfg.Prefix, Window: window, Timeout: cfg.Timeout,
	}
}
