package main

import (
	"bufio"
	"bytes"
	"hash/fnv"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
)

const logsBuffer = 128 << 10

// logPrinter writes lines to standard output, as soon as no more are waiting,
// and notes to standard error.
type logPrinter struct {
	lines *bufio.Writer
	notes io.Writer

	color       bool
	escape      bool // lines: standard output is a terminal
	escapeNotes bool
	prefix      config.When
	common      string // what the names of all replicas of the app begin with

	first   string // replica, as long as there has been no other
	several bool   // replicas, so far
	escaped []byte // memory
}

func newLogPrinter(cfg config.Config, stdout, stderr io.Writer) *logPrinter {
	p := &logPrinter{
		lines: bufio.NewWriterSize(stdout, logsBuffer), notes: stderr,
		prefix: cfg.ReplicaPrefix,
		common: kservice.Name(cfg.App) + "-",
	}
	p.onTerminal(isTerminal(stdout), isTerminal(stderr), cfg)
	return p
}

// onTerminal sets what is a terminal.
func (p *logPrinter) onTerminal(stdout, stderr bool, cfg config.Config) {
	p.color = colored(cfg.Color, stdout)
	p.escape, p.escapeNotes = stdout && !cfg.RawOutput, stderr && !cfg.RawOutput
}

func colored(choice config.When, terminal bool) bool {
	if choice != config.WhenAuto {
		return choice == config.WhenAlways
	}
	return terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// take is the handler of the stream.
func (p *logPrinter) take(m *client.Message) error {
	p.saw(m.Replica)
	for _, r := range m.Replicas {
		p.saw(r)
	}
	switch m.Kind {
	case client.Lines:
		if err := p.write(m); err != nil {
			return err
		}
	case client.Note:
		// On a terminal they stand where they belong.
		if err := p.lines.Flush(); err != nil {
			return err
		}
		body := m.Body
		if p.escapeNotes {
			body = forTerminal(nil, body)
		}
		printf(p.notes, "%s", body)
	}
	if m.More {
		return nil
	}
	return p.lines.Flush()
}

// saw counts replicas up to two.
func (p *logPrinter) saw(replica string) {
	switch {
	case replica == "" || replica == p.first:
	case p.first == "":
		p.first = replica
	default:
		p.several = true
	}
}

func (p *logPrinter) write(m *client.Message) error {
	prefix := ""
	if m.Replica != "" && (p.prefix == config.WhenAlways || p.prefix == config.WhenAuto && p.several) {
		prefix = p.prefixOf(m.Replica)
	}
	body := m.Body
	if p.escape {
		p.escaped = forTerminal(p.escaped[:0], body)
		body = p.escaped
	}
	if prefix == "" {
		_, err := p.lines.Write(body)
		return err
	}
	for line := range bytes.Lines(body) {
		_, _ = p.lines.WriteString(prefix) // an error of the writer stays and is found by the next write
		if _, err := p.lines.Write(line); err != nil {
			return err
		}
	}
	return nil
}

// prefixOf is what stands before the lines of a replica: its name without what
// those of all replicas begin with.
func (p *logPrinter) prefixOf(replica string) string {
	short := strings.TrimPrefix(replica, p.common)
	if !p.color {
		return short + " "
	}
	return "\x1b[" + strconv.Itoa(colorOf(replica)) + "m" + short + "\x1b[0m "
}

// colorOf is a color of the terminal that can be read on light and dark ground,
// always the same for one replica.
func colorOf(replica string) int {
	colors := []int{31, 32, 34, 35, 36, 91, 92, 94, 95, 96}
	h := fnv.New32a()
	_, _ = h.Write([]byte(replica))
	return colors[h.Sum32()%uint32(len(colors))]
}

func (p *logPrinter) noteEnd(reason subjects.LogEnd) {
	switch reason {
	case subjects.LogEndStopped:
		printf(p.notes, "%sthe stream was stopped\n", subjects.LogNotePrefix)
	case subjects.LogEndMaxDuration:
		printf(p.notes, "%sthe stream has lasted as long as it may\n", subjects.LogNotePrefix)
	}
}
