// Command recording records the terminal sessions of the documentation: it runs `make demo`, and
// beside it the stock nats CLI and `appbridge watch`, under a pseudo-terminal, as a user does, and
// writes what they print as docs/demo.svg and docs/demo.txt, docs/watch.svg and docs/watch.txt.
//
//	recording --out docs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func main() {
	out := flag.String("out", "docs", "folder of the pictures and texts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	demo, watch, err := record(ctx)
	stop()
	if err == nil {
		err = errors.Join(
			write(*out, "demo", "A terminal session with make demo and the nats CLI", demo),
			write(*out, "watch", "A terminal session with appbridge watch", watch),
		)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

// write writes a session as picture and text.
func write(folder, name, title string, lines []line) error {
	return errors.Join(
		os.WriteFile(filepath.Join(folder, name+".txt"), plain(lines), 0o644),
		os.WriteFile(filepath.Join(folder, name+".svg"), render(title, lines), 0o644),
	)
}

// line is one line of the terminal, with its colors, and the time from the line before it.
type line struct {
	text  string
	after time.Duration
}

// prompt is what a shell prints before a command.
const prompt = "\x1b[1m$ "

// demoTimeout bounds the demo, which builds what is missing.
const demoTimeout = 20 * time.Minute

var (
	serverForm = regexp.MustCompile(`NATS (nats://\S+), ready`)
	guideForm  = regexp.MustCompile(`== Look further`)
)

// record runs the demo until it shows how to look further, some of these commands, and a watch.
func record(ctx context.Context) (lines, watch []line, err error) {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	// The story is the same with Knative, and its events come in another number each time.
	demo, err := start(ctx, exec.Command("make", "demo", "KNATIVE=0"))
	if err != nil {
		return nil, nil, err
	}
	lines, err = demo.until(ctx, guideForm)
	if err == nil {
		url := serverURL(lines)
		var more []line
		more, err = look(ctx, url)
		lines = closer(append(visible(lines), more...))
		if err == nil {
			watch, err = watchApps(ctx, url)
		}
	}
	return lines, watch, errors.Join(err, demo.interrupt())
}

// serverURL is where the demo's NATS server listens.
func serverURL(demo []line) string {
	url := ""
	for _, l := range demo {
		if found := serverForm.FindStringSubmatch(l.text); found != nil {
			url = found[1]
		}
	}
	return url
}

// visible are the lines of the demo itself: without those of make, which name versions, and without
// the guide's heading.
func visible(lines []line) []line {
	shown := []line{{text: prompt + "make demo\x1b[0m"}}
	for _, l := range lines {
		if len(shown) == 1 && !strings.Contains(l.text, "== Starting") {
			continue
		}
		if guideForm.MatchString(l.text) {
			break
		}
		shown = append(shown, l)
	}
	return shown
}

// closer leaves one of several empty lines.
func closer(lines []line) []line {
	return slices.CompactFunc(lines, func(a, b line) bool { return a.text == "" && b.text == "" })
}

// look runs commands of the nats CLI against the demo's server.
func look(ctx context.Context, url string) ([]line, error) {
	cli, err := testenv.NATSCLI()
	if err != nil {
		return nil, err
	}
	var lines []line
	for _, command := range []string{
		"nats stream ls",
		"nats kv ls flyte-apps",
		`nats req --raw flyte.apps.logs.get.shop.production.storefront '{"tail": 2}'`,
		"nats sub 'flyte.apps.events.>' --headers-only --count 1",
	} {
		cmd := exec.Command("bash", "-c", command)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(cli)+":"+os.Getenv("PATH"), "NATS_URL="+url)
		c, err := start(ctx, cmd)
		if err != nil {
			return nil, err
		}
		printed, err := c.until(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		lines = append(lines, line{}, line{text: prompt + command + "\x1b[0m", after: time.Second})
		lines = append(lines, printed...)
	}
	return lines, nil
}
