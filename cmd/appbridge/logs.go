package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// logsLogLevel is the default: the log of the app is what is asked for.
	logsLogLevel = "warn"
	logsTimeout  = 10 * time.Second
	// logsStopGrace is how long an interrupted command may take to end. A
	// standard output that nobody reads holds it up for ever.
	logsStopGrace = 3 * time.Second
)

func logsDefaults() config {
	cfg := defaults()
	cfg.LogLevel, cfg.Timeout = logsLogLevel, logsTimeout
	return cfg
}

// logsCommand is `appbridge logs`.
func logsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	options := logsOptions()
	cfg, app, help, err := loadLogs(options, args, os.Environ())
	if help {
		logsUsage(stdout, options)
		return exitOK
	}
	if err != nil {
		printProblems(stderr, "logs", err)
		return exitUsage
	}
	log, err := newLogger(cfg.LogLevel, resolveLogFormat(cfg.LogFormat, stderr), stderr)
	if err != nil {
		printf(stderr, "appbridge: %v\n", err)
		return exitUsage
	}
	signals, release := catchSignals()
	defer release()
	ctx, stop := stopOnSignal(ctx, signals, log, func() { os.Exit(exitOK) })
	defer stop()
	defer killWhenStuck(ctx, logsStopGrace, func() { os.Exit(exitOK) })()

	out := newLogPrinter(cfg, app.AppID, stdout, stderr)
	if err := printLogs(ctx, cfg, app, log, out); err != nil {
		printf(stderr, "appbridge: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return exitFailure
	}
	return exitOK
}

// target is what one run asks for beside the configuration.
type target struct {
	subjects.AppID
	tail *int
}

// loadLogs is load with what is special about logs.
func loadLogs(options []option, args, environ []string) (cfg config, app target, help bool, err error) {
	var operands []string
	cfg, set, help, err := loadOperands(options, args, environ, &operands)
	if help {
		return config{}, target{}, true, nil
	}
	initial := logsDefaults()
	if _, given := set["log-level"]; !given {
		cfg.LogLevel = initial.LogLevel
	}
	if _, given := set["timeout"]; !given {
		cfg.Timeout = initial.Timeout
	}
	_, tailGiven := set["tail"]
	if tailGiven || cfg.Since == 0 && cfg.SinceTime.IsZero() {
		app.tail = &cfg.Tail
	}
	var found problems
	errors.As(err, &found)
	checkNoEmbedded("logs", set, &found)
	app.AppID = appOperand(operands, &found)
	return cfg, app, false, found.err()
}

// appOperand is the app that the arguments name.
func appOperand(operands []string, found *problems) subjects.AppID {
	const want = "want project/domain/app, for example shop/production/search"
	switch len(operands) {
	case 0:
		found.add("no app to print the log of: %s", want)
		return subjects.AppID{}
	case 1:
	default:
		found.add("%q: unexpected argument: one app at a time, %s", redactURLs(operands[1]), want)
		return subjects.AppID{}
	}
	parts := strings.SplitN(operands[0], "/", 3)
	if len(parts) < 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		found.add("%q: not an app: %s", redactURLs(operands[0]), want)
		return subjects.AppID{}
	}
	app := subjects.AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}
	if err := app.Validate(); err != nil {
		found.add("%s; %s", err, want)
	}
	return app
}

// printLogs connects and prints until the log is at its end.
func printLogs(ctx context.Context, cfg config, app target, log *zap.Logger, out *logPrinter) error {
	link, err := connectForLogs(ctx, cfg, log)
	if err != nil {
		return stoppedOr(ctx, err)
	}
	defer link.close(false)
	end, err := client.Follow(ctx, link.nc, logRequest(cfg, app), out.take)
	failure := link.failure()
	if flushErr := out.flush(); err == nil {
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
	case errors.Is(err, client.ErrNoAnswer) && errors.Is(link.nc.LastError(), nats.ErrPermissionViolation):
		return fmt.Errorf("%w: %w", err, link.nc.LastError())
	case errors.Is(err, client.ErrNoService):
		return fmt.Errorf("%w: no bridge with this prefix is connected to this NATS, or this user may not ask it", err)
	}
	return err
}

// logRequest is the request in the words of the service. The bytes of a line
// are to be as they were written, so the prefixes are put on here.
func logRequest(cfg config, app target) client.Request {
	window := cfg.Window
	if window == 0 {
		window = client.Paced
	}
	return client.Request{
		App: app.AppID, Replica: cfg.Replica, Container: cfg.Container, Tail: app.tail,
		Since: max(cfg.Since, 0), SinceStart: cfg.Since == sinceStart, SinceTime: cfg.SinceTime,
		Follow: &cfg.Follow, Previous: cfg.Previous, Timestamps: cfg.Timestamps, Include: cfg.Include, Exclude: cfg.Exclude,
		Format: client.FormatRaw, MaxDuration: cfg.MaxDuration, Prefix: cfg.Prefix, Window: window, Timeout: cfg.Timeout,
	}
}

// connectForLogs waits for the connection: who asks for a log is there to read it,
// and an address that nobody answers at is more likely wrong than early.
func connectForLogs(parent context.Context, cfg config, log *zap.Logger) (*natsLink, error) {
	ctx, cancel := context.WithTimeout(parent, cfg.Timeout)
	defer cancel()
	cfg.ClusterName = "logs" // as the server lists the connection: this one is of no cluster
	// A stream outlives a break of some seconds; a new one costs reading again.
	link, err := connectNATS(ctx, cfg, cfg.NATSURL, log.Named("nats"), nats.CustomInboxPrefix(cfg.LogInboxPrefix),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2))
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !link.nc.IsConnected() {
		err := link.failure()
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err == nil {
				err = noConnection(cfg, link)
			}
		}
		if parent.Err() != nil {
			err = parent.Err()
		}
		if err != nil {
			link.close(false)
			return nil, err
		}
	}
	return link, nil
}

func noConnection(cfg config, link *natsLink) error {
	reason := ""
	if latest := link.outage.latest(); latest != "" {
		reason = ": " + latest
	}
	return fmt.Errorf("NATS at %s did not answer within %s%s", shownURLs(cfg.NATSURL), cfg.Timeout, reason)
}
