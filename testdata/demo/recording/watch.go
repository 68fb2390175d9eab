package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// tableForm is the first line of a screen of `appbridge watch`.
var tableForm = regexp.MustCompile(`PROJECT +DOMAIN`)

// liveScreens is how many screens are read. The last of them is shown.
const liveScreens = 25

// watchApps runs `appbridge watch` against the demo's server.
func watchApps(ctx context.Context, url string) ([]line, error) {
	bin, err := filepath.Abs("bin")
	if err != nil {
		return nil, err
	}
	command := func(text string) *exec.Cmd {
		cmd := exec.Command("bash", "-c", text)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "APPBRIDGE_NATS_URL="+url)
		return cmd
	}
	var lines []line
	for _, text := range []string{
		"appbridge watch --once",
		"appbridge watch ml/production/score.v2 --since 10m --once",
		"appbridge watch shop/production/storefront --until ACTIVE --timeout 5m && echo deployed",
		"appbridge watch --at 20s --once -o name",
	} {
		c, err := start(ctx, command(text))
		if err != nil {
			return nil, err
		}
		printed, err := c.until(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		lines = append(lines, line{text: prompt + text + "\x1b[0m", after: time.Second})
		lines = append(append(lines, printed...), line{})
	}
	const live = "appbridge watch"
	screen, err := liveScreen(ctx, command("exec "+live))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", live, err)
	}
	return append(append(lines, line{text: prompt + live + "\x1b[0m", after: time.Second}), screen...), nil
}

// liveScreen is the last screen of a live table, without its empty rows, which is then ended with
// Ctrl-C.
func liveScreen(ctx context.Context, cmd *exec.Cmd) ([]line, error) {
	c, err := start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	var texts []string
	for range liveScreens {
		printed, err := c.until(ctx, tableForm)
		if err != nil {
			return nil, err
		}
		for _, l := range printed {
			texts = append(texts, l.text)
		}
	}
	if err := c.interrupt(); err != nil {
		return nil, err
	}
	// A screen begins behind the sequence that moves to the first line.
	screens := strings.Split(strings.Join(texts, "\n"), "\x1b[H")
	var lines []line
	for text := range strings.SplitSeq(screens[len(screens)-2], "\n") {
		if otherSequences.ReplaceAllString(text, "") != "" {
			lines = append(lines, line{text: text})
		}
	}
	return lines, nil
}
