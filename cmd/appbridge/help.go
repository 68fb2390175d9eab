package main

import (
	"io"
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

// serveUsage writes the help text of serve from the table.
func serveUsage(w io.Writer, options []option) {
	printf(w, "Watches the Knative Services that Flyte manages, appends every change of an app\n"+
		"to a NATS JetStream stream and keeps the current state in a key-value bucket.\n\n"+
		"Usage:\n  appbridge serve [flags]\n\n"+
		"Every flag has an environment variable (--nats-url: %s) and a key in the\n"+
		"file that --config names (nats-url). A flag wins over a variable, a variable over\n"+
		"the file, the file over the default.\n", option{name: "nats-url"}.variable())
	listOptions(w, options, defaults())
	printf(w, "\n%s", strings.TrimLeft(`
Exit codes: 0 after a clean shutdown, 1 on a failure or when not everything could be
flushed, 2 when the configuration is wrong.
`, "\n"))
}

// verifyUsage writes the help text of verify from the table.
func verifyUsage(w io.Writer, options []option) {
	printf(w, "Compares the cluster, the event stream and the bucket, also while a bridge runs,\n"+
		"and prints every difference. It changes nothing without --repair, which only\nthe command line can ask for.\n\n"+
		"Usage:\n  appbridge verify [flags]\n\n"+
		"It takes the same flags, variables (--nats-url: %s) and configuration file as\n"+
		"serve and passes over what only serve needs. Give it what the bridges have: another\n"+
		"--base-domain or --encoding makes every app differ. For a server that runs inside of a\n"+
		"bridge (--nats-embedded) name the address it listens on with --nats-url.\n", option{name: "nats-url"}.variable())
	listOptions(w, options, verifyDefaults())
	printf(w, "\n%s", strings.TrimLeft(`
Exit codes: 0 when there is no difference, or none any more, 1 when there are differences,
on a failure or when the report could not be written, 2 when the configuration is wrong, 130
when a signal interrupted the comparison.
`, "\n"))
}

// logsUsage writes the help text of logs from the table.
func logsUsage(w io.Writer, options []option) {
	printf(w, "Prints the log of an app, which the log service of a bridge sends over NATS.\n\n"+
		"Usage:\n  appbridge logs [flags] project/domain/app\n\n"+
		"Examples:\n"+
		"  appbridge logs shop/production/search                      # what there is\n"+
		"  appbridge logs -f --tail 10 shop/production/search         # and what comes\n"+
		"  appbridge logs --since 1h --include ERROR shop/production/search | less\n"+
		"  appbridge logs -p shop/production/search                   # before the last restart\n\n"+
		"Lines go to standard output as they were written, and notes of the service\n"+
		"(\"%s…\") to standard error. It takes the same variables (--nats-url: %s)\n"+
		"and configuration file as serve and passes over what only serve needs.\n",
		subjects.LogNotePrefix, option{name: "nats-url"}.variable())
	listOptions(w, options, logsDefaults())
	printf(w, "\n%s", strings.TrimLeft(`
Exit codes: 0 when the log is at its end, was stopped or has lasted --max-duration, and after
Ctrl-C; 1 when there is no such app, on a failure and when the stream broke off; 2 when the
command line or the configuration is wrong.
`, "\n"))
}

func listOptions(w io.Writer, options []option, initial config) {
	title := ""
	for _, o := range options {
		if o.section != title {
			title = o.section
			printf(w, "\n%s:\n", title)
		}
		flag := o.form()
		value := o.text(&initial)
		switch {
		case value == "" || o.kind == "":
			printf(w, "  %s\n        %s\n", flag, o.usage)
		case o.quoted:
			printf(w, "  %s\n        %s (default %q)\n", flag, o.usage, value)
		default:
			printf(w, "  %s\n        %s (default %s)\n", flag, o.usage, value)
		}
	}
}
