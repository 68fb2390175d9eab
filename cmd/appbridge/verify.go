package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
)

// verifyLogLevel is the default: the report is what is asked for.
const verifyLogLevel = "warn"

func verifyDefaults() config {
	cfg := defaults()
	cfg.LogLevel = verifyLogLevel
	return cfg
}

// verifyCommand is `appbridge verify`.
func verifyCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	options := verifyOptions()
	cfg, set, help, err := load(options, args, os.Environ())
	if help {
		verifyUsage(stdout, options)
		return exitOK
	}
	if _, given := set["log-level"]; !given {
		cfg.LogLevel = verifyLogLevel
	}
	var found problems
	errors.As(err, &found)
	checkNoEmbedded("verify", set, &found)
	kube, err := completeConfig(&cfg, set, cfg.Repair, found.err())
	if err != nil {
		printProblems(stderr, "verify", err)
		return exitUsage
	}
	log, err := newLogger(cfg.LogLevel, resolveLogFormat(cfg.LogFormat, stderr), stderr)
	if err != nil {
		printf(stderr, "appbridge: %v\n", err)
		return exitUsage
	}
	routeLibraryLogs(log)
	signals, release := catchSignals()
	defer release()
	ctx, stop := stopOnSignal(ctx, signals, log, func() { os.Exit(exitInterrupted) })
	defer stop()

	out := &errorKeeper{w: stdout}
	report, err := verify(ctx, cfg, kube, log, out)
	if cfg.JSON {
		if printErr := printJSON(out, report, err); out.err == nil {
			err = errors.Join(err, printErr)
		}
	} else {
		printReport(out, report, err)
	}
	if err != nil {
		printf(stderr, "appbridge: the comparison failed: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if out.err != nil {
		printf(stderr, "appbridge: cannot write the report: %v\n", out.err)
	}
	switch {
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case err != nil, out.err != nil, len(report.Differences) > 0:
		return exitFailure
	}
	return exitOK
}

// errInterrupted is the error of a comparison that a signal ended.
var errInterrupted = errors.New("interrupted")

// errorKeeper remembers the first error of a writer. After it nothing is written.
type errorKeeper struct {
	w   io.Writer
	err error
}

func (k *errorKeeper) Write(p []byte) (int, error) {
	if k.err != nil {
		return 0, k.err
	}
	n, err := k.w.Write(p)
	k.err = err
	return n, err
}

// checkNoEmbedded finds a configuration of a bridge that runs its NATS server
// itself: the other commands need the address of that server.
func checkNoEmbedded(command string, set settings, found *problems) {
	embedded, given := set["nats-embedded"]
	if on, err := strconv.ParseBool(embedded.text); !given || err != nil || !on {
		return
	}
	if _, given := set["nats-url"]; given {
		return
	}
	listen := defaults().NATSEmbeddedListen
	if s, given := set["nats-embedded-listen"]; given && s.text != "" {
		listen = s.text
	}
	found.add("nats-embedded (from %s): %s runs no server: want nats-url with the address that the embedded server of the bridge listens on, for example --nats-url nats://%s",
		embedded.source, command, listen)
}

// verify connects, compares and tells of repairs as they happen.
func verify(ctx context.Context, cfg config, kube *rest.Config, log *zap.Logger, stdout io.Writer) (*bridge.Report, error) {
	none := &bridge.Report{Differences: []bridge.Difference{}, Notes: []bridge.Note{}, Repairs: []bridge.Repair{}}
	link, err := connectNATS(ctx, cfg, cfg.NATSURL, log.Named("nats"))
	if err != nil {
		return none, err
	}
	defer link.close(false)
	opts := bridge.VerifyOptions{Settle: cfg.Settle, Timeout: cfg.Timeout, Repair: cfg.Repair}
	if !cfg.JSON {
		opts.Repaired = func(r bridge.Repair) { printf(stdout, "repaired: %s\n", r) }
	}
	report, err := bridge.Verify(ctx, cfg.bridgeConfig("verify"), kube, link.nc, log.Named("bridge"), opts)
	switch failure := link.failure(); {
	case err == nil:
	case ctx.Err() != nil:
		err = errInterrupted
	case failure != nil:
		err = failure
	}
	return report, err
}

// printReport writes the report as text. A comparison that failed has no summary.
func printReport(w io.Writer, report *bridge.Report, err error) {
	for _, d := range report.Differences {
		printf(w, "%s\n", d)
	}
	for _, n := range report.Notes {
		printf(w, "note: %s\n", n)
	}
	if err != nil && len(report.Differences) == 0 {
		return
	}
	found := counted(len(report.Differences), "difference", "differences")
	if len(report.Differences) == 0 {
		found = "no difference"
	}
	repaired := ""
	if report.Repaired > 0 {
		repaired = fmt.Sprintf(", %s", counted(report.Repaired, "repair", "repairs"))
	}
	printf(w, "%s in %s, stream at sequence %d%s\n", found, counted(report.Apps, "app", "apps"), report.Sequence, repaired)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// printJSON writes the report as one JSON object, with the error if there is one.
func printJSON(w io.Writer, report *bridge.Report, err error) error {
	out := struct {
		*bridge.Report
		Error string `json:"error,omitempty"`
	}{Report: report}
	if err != nil {
		out.Error = err.Error()
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(out)
}
