package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

func verifyCommand() *cobra.Command {
	return configured(config.Verify, &cobra.Command{
		Use: "verify", Short: "Compare cluster, stream and bucket, and repair them",
		Long: `Compares the cluster, the event stream and the bucket, also while a bridge runs,
and prints every difference. It changes nothing without --repair, which can be set on the
command line only.

It takes the same flags, variables (--nats-url: APPBRIDGE_NATS_URL) and configuration file as
serve and ignores what only serve needs. Give it the options of the bridges: with another
--base-domain or --encoding it compares no app. For a server that runs inside of a bridge
(--nats-embedded) set --nats-url to the address it listens on.`,
	}, `Exit codes: 0 when there is no difference, or none any more, 1 when there are differences,
on a failure or when the report could not be written, 2 when the configuration is wrong, 130
when a signal interrupted the comparison.`, exitAtOnce(exitInterrupted), verifyAndPrint)
}

func verifyAndPrint(ctx context.Context, cfg config.Config, log *zap.Logger, stdout, stderr io.Writer) int {
	routeLibraryLogs(log)
	out := bufio.NewWriter(stdout)
	report, err := verify(ctx, cfg, log, out)
	var encodeErr error
	if cfg.JSON {
		encodeErr = printJSON(out, report, err)
	} else {
		printReport(out, report, err)
	}
	writeErr := out.Flush()
	if writeErr == nil {
		err = errors.Join(err, encodeErr)
	}
	if err != nil {
		printf(stderr, "appbridge: the comparison failed: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if writeErr != nil {
		printf(stderr, "appbridge: cannot write the report: %v\n", writeErr)
	}
	switch {
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case err != nil, writeErr != nil, len(report.Differences) > 0:
		return exitFailure
	}
	return exitOK
}

// errInterrupted is the error of a comparison that a signal ended.
var errInterrupted = errors.New("interrupted")

func verify(ctx context.Context, cfg config.Config, log *zap.Logger, out *bufio.Writer) (*audit.Report, error) {
	link, err := natsconn.Connect(ctx, cfg.NATS, connectionName(cfg), log.Named("nats"))
	if err != nil {
		return audit.NewReport(), err
	}
	defer link.Close(false)
	opts := audit.Options{ConfirmFor: cfg.ConfirmFor, Timeout: cfg.Timeout, Repair: cfg.Repair}
	if !cfg.JSON {
		opts.Repaired = func(r audit.Repair) {
			printf(out, "repaired: %s\n", r)
			_ = out.Flush() // the writer keeps an error
		}
	}
	report, err := bridge.Verify(ctx, cfg.Bridge("verify"), cfg.Kube, link.NATS, log.Named("bridge"), opts)
	switch failure := link.Err(); {
	case err == nil:
	case ctx.Err() != nil:
		err = errInterrupted
	case failure != nil:
		err = failure
	}
	return report, err
}

// printReport writes the report as text. A comparison that failed has no summary.
func printReport(w io.Writer, report *audit.Report, err error) {
	for _, d := range report.Differences {
		printf(w, "%s\n", d)
	}
	for _, n := range report.Notes {
		printf(w, "note: %s\n", n)
	}
	if err != nil && len(report.Differences) == 0 {
		return
	}
	found, repaired := "no difference", ""
	if n := len(report.Differences); n > 0 {
		found = counted(n, "difference")
	}
	if report.Repaired > 0 {
		repaired = ", " + counted(report.Repaired, "repair")
	}
	printf(w, "%s in %s, stream at sequence %d%s\n", found, counted(report.Apps, "app"), report.Sequence, repaired)
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// printJSON writes the report as one JSON object, with the error if there is one.
func printJSON(w io.Writer, report *audit.Report, err error) error {
	out := struct {
		*audit.Report
		Error string `json:"error,omitempty"`
	}{Report: report}
	if err != nil {
		out.Error = err.Error()
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(out)
}
