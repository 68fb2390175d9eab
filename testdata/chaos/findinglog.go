package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// What a bridge logs when it notices by itself what no error shows; docs/guarantees.md
// has the messages.
const (
	logFinding    = "the audit found a difference"
	logRepair     = "the audit repaired a difference"
	logPlainList  = "a list made no progress; a plain list follows"
	logNoBookmark = "a watch had no bookmark for too long; it is opened again"
	logRelist     = "an informer lists again"
	logLostLease  = "lost the Lease"
	logNewBridge  = "a NATS connection was closed for good; starting again with new ones"
)

// The metrics that go with them.
const (
	metricFindings   = "appbridge_audit_findings_total"
	metricRounds     = `appbridge_audit_rounds_total{result="complete"}`
	metricUnrepaired = "appbridge_audit_unrepaired"
	metricAuditTime  = "appbridge_audit_seconds_total"
)

// sideSource is the side of a difference between the cluster and what a bridge has seen of it.
const sideSource = "source"

// watchMessages name a view of Kubernetes that stood still, whatever it hid.
var watchMessages = []string{
	logPlainList, logNoBookmark, logRelist,
	"Kubernetes is unavailable; its changes are read once it is back", logLostLease, "standing by",
}

// storageMessages name a hand in the bucket or in the stream that is noticed without the audit.
var storageMessages = []string{
	logRepair, "restored a bucket entry", "an app's key in the bucket had no event in the stream", "bucket entry is damaged",
	"reading the bucket again", "keys are missing in the bucket; writing them again",
	"messages were removed from the stream; their apps go on without them", "the session ended; the next one reconciles",
}

// difference is one that an audit found.
type difference struct {
	at                 time.Time
	bridge, kind, side string
	line               string // as it was logged
}

func (d difference) mentions(name string) bool { return mentions(d.line, name) }

func (d difference) String() string {
	return fmt.Sprintf("bridge %s: %s", d.bridge, strings.TrimSpace(d.line))
}

// mentions reports whether a line has a name, and not only as a part of a longer one.
func mentions(line, name string) bool {
	for rest := line; name != ""; {
		at := strings.Index(rest, name)
		if at < 0 {
			return false
		}
		before, after := rest[:at], rest[at+len(name):]
		if !endsInWord(before) && !beginsWithWord(after) {
			return true
		}
		rest = after
	}
	return false
}

func endsInWord(s string) bool     { return s != "" && isWord(s[len(s)-1]) }
func beginsWithWord(s string) bool { return s != "" && isWord(s[0]) }

func isWord(c byte) bool {
	return c == '-' || c == '_' || c == '=' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// logLine is a line of a bridge's log. Lines of other forms are passed over.
type logLine struct {
	Level, Msg, Time string
	Kind, Side       string
	text             string
}

func logLines(log []byte) []logLine {
	var all []logLine
	for line := range bytes.Lines(log) {
		said := logLine{text: string(line)}
		if json.Unmarshal(line, &said) == nil {
			all = append(all, said)
		}
	}
	return all
}

// differences are those that a log has.
func differences(bridge string, log []byte) []difference {
	var all []difference
	for _, l := range logLines(log) {
		if l.Msg != logFinding {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, l.Time)
		if err != nil {
			continue
		}
		all = append(all, difference{at: at, bridge: bridge, kind: l.Kind, side: l.Side, line: l.text})
	}
	return all
}

// naming is the line of a log that names a fault, "" if none does: one with one of
// the messages, a difference or a warning that mentions one of the names, or any
// difference if there are no names.
func naming(log []byte, messages, names []string) string {
	for _, l := range logLines(log) {
		mentioned := slices.ContainsFunc(names, func(name string) bool { return mentions(l.text, name) })
		switch {
		case l.Msg == logFinding && (mentioned || names == nil):
			return strings.TrimSpace(fmt.Sprintf("audit (%s %s)", l.Side, l.Kind))
		case slices.Contains(messages, l.Msg):
			return l.Msg
		case mentioned && (l.Level == "warn" || l.Level == "error"):
			return l.Msg
		}
	}
	return ""
}
