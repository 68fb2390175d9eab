package logsvc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/match"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// maxBody is how long the options of a request may be: 16 KiB, and 176 KiB for the positions of as
	// many replicas as --max-pod-streams allows by default (500), with the longest names.
	maxBody = 192 << 10
	// defaultTail is the default number of existing lines.
	defaultTail = 1000
	maxWindow   = 1024
	quotedBytes = 64 // how much of an invalid value an error quotes
)

const (
	end503   = "503"
	endEmpty = "empty"
)

// The values of source, those of Flyte's LogsSource.
const (
	sourceAny       = "LIVE_OR_PERSISTED"
	sourceLive      = "LIVE_ONLY"
	sourcePersisted = "PERSISTED_ONLY"
)

// logRequest is a request with valid options.
type logRequest struct {
	op               subjects.LogOp
	reply            string
	arrived          time.Time
	query            Query
	source           string // empty: sourceAny
	timestamps       bool
	include, exclude *match.Expression // nil: everything, nothing
	format           subjects.LogFormat
	window           int // 0: paced
	end              string
	maxDuration      time.Duration // 0: no limit
}

func newRequest(op subjects.LogOp, app subjects.AppID, r *request.Request) *logRequest {
	return &logRequest{op: op, reply: r.Reply, arrived: r.Arrived, query: Query{App: app, Tail: -1}, format: subjects.LogFormatText, end: end503}
}

// far reports whether the reader is in another account.
func (r *logRequest) far() bool { return strings.HasPrefix(r.reply, request.FarPrefix) }

func (r *logRequest) matcher(turns *request.Limiter) *match.Matcher {
	return match.New(turns, r.query.App.Project, r.include, r.exclude)
}

// parse reads the options of a request. The error is a *request.Error that
// names every invalid field, or the one that cannot be served.
func (r *logRequest) parse(fields map[string]json.RawMessage) error {
	p := &optionParser{fields: fields}
	option(p, "replica", "the name of a replica", &r.query.Replica, notEmpty)
	option(p, "container", "the name of a container", &r.query.Container, notEmpty)
	option(p, "tail", `a whole number of lines from 0 on, or "all"`, (*tailLines)(&r.query.Tail), nil)
	r.readSince(p)
	word(p, "source", &r.source, sourceAny, sourceLive, sourcePersisted)
	var follow bool
	if option(p, "follow", "true or false", &follow, nil) {
		r.query.Follow = FollowNever
		if follow {
			r.query.Follow = FollowAlways
		}
	}
	option(p, "previous", "true or false", &r.query.Previous, nil)
	option(p, "timestamps", "true or false", &r.timestamps, nil)
	r.include = pattern(p, "include")
	r.exclude = pattern(p, "exclude")
	word(p, "format", &r.format, subjects.LogFormatText, subjects.LogFormatRaw, subjects.LogFormatJSON, subjects.LogFormatProto)
	var window whole
	option(p, "window", fmt.Sprintf("a whole number of messages from 1 to %d", maxWindow), &window,
		func(n whole) bool { return n >= 1 && n <= maxWindow })
	r.window = int(window)
	word(p, "end", &r.end, end503, endEmpty)
	var limit string
	option(p, "max_duration", "a duration like 10m or 1h30m, in quotes", &limit, func(s string) (ok bool) {
		r.maxDuration, ok = positive(s)
		return ok
	})
	option(p, "positions", "true or false", &r.query.Positions, nil)
	r.readResume(p)
	p.finish(r)
	if problems := p.Texts(); len(problems) > 0 {
		return request.Errorf(subjects.CodeInvalidArgument, "%s", strings.Join(problems, "; "))
	}
	if r.source == sourcePersisted {
		return request.Errorf(subjects.CodeFailedPrecondition, "source: %q: there are no persisted logs, want %s or %s", r.source, sourceLive, sourceAny)
	}
	return nil
}

// endOption returns the option end of a request that is refused before it is parsed.
func endOption(body []byte) string {
	var options struct {
		End string `json:"end"`
	}
	if bytes.Contains(body, []byte(endEmpty)) && json.Unmarshal(body, &options) == nil && options.End == endEmpty {
		return endEmpty
	}
	return end503
}

// objectOf returns the fields of a body. An empty body has none.
func objectOf(body []byte) (map[string]json.RawMessage, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return nil, request.Errorf(subjects.CodeInvalidArgument, "body: %s: want nothing or a JSON object with options", quoted(body))
	}
	return fields, nil
}

// whole is a whole number in any form that JSON has: 5, 5.0 and 0.5e1 are the same.
type whole int64

// maxWhole stands for all larger numbers.
const maxWhole = 1 << 53

func (n *whole) UnmarshalJSON(text []byte) error {
	var f float64
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f != math.Trunc(f) {
		return errors.New("not a whole number")
	}
	*n = whole(min(max(f, -maxWhole), maxWhole))
	return nil
}

// tailLines is a number of lines, negative for all.
type tailLines int64

func (n *tailLines) UnmarshalJSON(text []byte) error {
	*n = -1
	if string(text) == `"all"` {
		return nil
	}
	var lines whole
	if err := json.Unmarshal(text, &lines); err != nil {
		return err
	}
	if lines < 0 {
		return errors.New("negative")
	}
	if lines < maxWhole { // no log has more
		*n = tailLines(lines)
	}
	return nil
}

// sinceStart selects all lines since the container started: the whole log of the instance.
const sinceStart = "start"

// readSince reads since and since_time. They replace the default of tail.
func (r *logRequest) readSince(p *optionParser) {
	var text string
	since := option(p, "since", `a duration like 10m or 1h30m, or "start", in quotes`, &text, func(s string) bool {
		d, ok := positive(s)
		if ok {
			r.query.Age = d
		}
		return ok || s == sinceStart
	})
	if option(p, "since_time", "a time like 2026-11-21T08:51:07Z (RFC 3339)", &text, func(s string) bool {
		t, err := time.Parse(time.RFC3339Nano, s)
		r.query.Since = t
		return err == nil
	}) {
		// Kubernetes takes times in UTC with a year of four digits.
		if year := r.query.Since.UTC().Year(); year < 0 || year > 9999 {
			p.Add("since_time", quoted(p.fields["since_time"])+": want a time from the year 0 to the year 9999 in UTC")
		}
		if since {
			p.Add("since_time", quoted(p.fields["since_time"])+": want since or since_time, not both")
		}
	}
	if _, given := p.fields["tail"]; !given && !since && r.query.Since.IsZero() {
		r.query.Tail = defaultTail
	}
}

// readResume reads resume, which replaces tail, since and since_time unless a position is empty.
func (r *logRequest) readResume(p *optionParser) {
	var texts map[string]string
	if !option(p, "resume", "an object with the positions of replicas", &texts, nil) {
		return
	}
	r.query.Resume = make(map[string]Position, len(texts))
	begins := false // a replica without a position
	for _, replica := range slices.Sorted(maps.Keys(texts)) {
		position, ok := parsePosition(texts[replica])
		if !ok {
			p.Add("resume", invalidPosition(replica, texts[replica]))
		}
		r.query.Resume[replica] = position
		begins = begins || position.Place == ""
	}
	for _, name := range []string{"tail", "since", "since_time"} {
		if raw, given := p.fields[name]; given && !begins {
			p.Add(name, quoted(raw)+": every replica in resume has a position, want "+name+" or resume, not both")
		}
	}
}

// optionParser collects the problems of the fields of a request.
type optionParser struct {
	kservice.Problems

	fields map[string]json.RawMessage
	known  []string
}

// finish finds unknown options and invalid combinations.
func (p *optionParser) finish(r *logRequest) {
	for _, name := range slices.Sorted(maps.Keys(p.fields)) {
		if !slices.Contains(p.known, name) {
			p.Add(quoted([]byte(strconv.Quote(name))), "unknown option, want one of "+strings.Join(p.known, ", "))
		}
	}
	if r.query.Previous && r.query.Follow == FollowAlways {
		p.Add("follow", "true: a previous container writes nothing more, want previous or follow, not both")
	}
	if r.far() && r.op == subjects.LogOpen {
		p.Add("open", "a reader in another account cannot listen to the stream, want tail")
	}
	if r.far() && r.window > 0 {
		p.Add("window", fmt.Sprintf("%d: a reader in another account cannot acknowledge, want none (appbridge logs: --window 0)", r.window))
	}
	if r.op != subjects.LogGet {
		return
	}
	for _, name := range []string{"window", "end", "max_duration", "positions", "resume"} {
		if _, given := p.fields[name]; given {
			p.Add(name, quoted(p.fields[name])+": get answers with one message, want tail or open for a stream")
		}
	}
	if r.query.Follow == FollowAlways {
		p.Add("follow", "true: get answers with one message, want tail or open for a stream")
	}
	r.query.Follow = FollowNever
}

// option reads one field into value and reports whether it has a valid value.
func option[T any](p *optionParser, name, want string, value *T, ok func(T) bool) bool {
	p.known = append(p.known, name)
	raw, given := p.fields[name]
	if !given {
		return false
	}
	var v T
	if bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, &v) != nil || ok != nil && !ok(v) {
		p.Add(name, quoted(raw)+": want "+want)
		return false
	}
	*value = v
	return true
}

func positive(text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	return d, err == nil && d > 0
}

func pattern(p *optionParser, name string) (e *match.Expression) {
	var text string
	option(p, name, fmt.Sprintf("a regular expression (RE2) of at most %d bytes and not too many repetitions or Unicode classes", match.MaxBytes), &text, func(s string) bool {
		e = match.Compile(s)
		return e != nil
	})
	return e
}

func word[T ~string](p *optionParser, name string, value *T, words ...T) {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	option(p, name, "one of "+strings.Join(names, ", "), value, func(v T) bool { return slices.Contains(words, v) })
}

func notEmpty(s string) bool { return s != "" }

// quoted returns a value for an error: one line, not too long.
func quoted(raw []byte) string {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) == nil {
		raw = compact.Bytes()
	}
	if len(raw) > quotedBytes {
		raw = append(bytes.ToValidUTF8(raw[:quotedBytes:quotedBytes], nil), "…"...)
	}
	text := strconv.QuoteToGraphic(string(raw))
	// A JSON string has its quotes already.
	if inner := text[1 : len(text)-1]; inner == string(raw) || strings.ReplaceAll(inner, `\"`, `"`) == string(raw) {
		return string(raw)
	}
	return text
}
