package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

// The exit codes of every subcommand.
const (
	exitOK      = 0
	exitFailure = 1 // a failure while running
	exitUsage   = 2 // the command line or the configuration is wrong
	// exitInterrupted is that of a comparison that a signal ended, as a shell has it for SIGINT.
	exitInterrupted = 130
)

// exitCode is the error of a command that has reported what is wrong.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func newRoot(args []string, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "appbridge",
		Long: "appbridge publishes the changes of Flyte apps to NATS JetStream, keeps their\n" +
			"current state in a key-value bucket and serves their logs.",
		Version:       currentBuild().Version,
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetVersionTemplate(currentBuild().String())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd != root {
			return err
		}
		return fmt.Errorf("%w: a command comes first, for example `appbridge serve --nats-embedded`", err)
	})
	root.SetHelpCommand(&cobra.Command{
		Use: "help [command]", Short: "Print this text, or with a command its flags",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, _, err := root.Find(args)
			if err != nil {
				return err
			}
			return cmd.Help()
		},
	})
	root.AddCommand(serveCommand(), logsCommand(), watchCommand(), verifyCommand(), versionCommand())
	switch {
	case len(args) == 0:
		root.SetOut(stderr)
		root.RunE = func(cmd *cobra.Command, _ []string) error {
			cmd.RunE = nil // as in the text of --help
			return errors.Join(cmd.Help(), exitCode(exitUsage))
		}
	case strings.HasPrefix(args[0], cobra.ShellCompRequestCmd):
		for _, cmd := range root.Commands() {
			cmd.DisableFlagParsing = false // cobra completes the flags that it parses
		}
	}
	return root
}

// job is what a command does once it is configured. It returns the exit code.
type job func(ctx context.Context, cfg config.Config, log *zap.Logger, stdout, stderr io.Writer) int

// configured completes a command that has options: it loads them, and runs the job until
// a signal. A second signal calls kill, which ends the process. epilog ends the help text.
func configured(command config.Command, cmd *cobra.Command, epilog string, kill func(), run job) *cobra.Command {
	config.AddFlags(cmd, command)
	cmd.DisableFlagParsing = true // config.Load parses them
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		out := cmd.OutOrStdout()
		printf(out, "%s\n\nUsage:\n  %s\n", cmd.Long, cmd.UseLine())
		if cmd.Example != "" {
			printf(out, "\nExamples:\n%s\n", cmd.Example)
		}
		config.PrintOptions(out, command)
		printf(out, "\n%s\n", epilog)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stderr := cmd.ErrOrStderr()
		cfg, err := config.Load(command, args, os.Environ())
		switch {
		case errors.Is(err, config.ErrHelp):
			return cmd.Help()
		case err != nil:
			for line := range strings.SplitSeq(err.Error(), "\n") {
				printf(stderr, "appbridge: %s\n", line)
			}
			printf(stderr, "appbridge: the configuration is wrong; `appbridge %s --help` lists every option\n", command)
			return exitCode(exitUsage)
		}
		if cfg.Kube != nil {
			cfg.Kube.UserAgent = "appbridge/" + currentBuild().Version
		}
		cfg.LogFormat = resolveLogFormat(cfg.LogFormat, stderr)
		log, err := newLogger(cfg.LogLevel, cfg.LogFormat, stderr)
		if err != nil {
			return err
		}
		ctx, stop := stopOnSignal(cmd.Context(), log, secondSignalAfter, kill)
		defer stop()
		if code := run(ctx, cfg, log, cmd.OutOrStdout(), stderr); code != exitOK {
			return exitCode(code)
		}
		return nil
	}
	return cmd
}

// exitAtOnce ends the process with a code.
func exitAtOnce(code int) func() { return func() { os.Exit(code) } }

// printf writes to the terminal. An error means that its reader is gone.
func printf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
}
