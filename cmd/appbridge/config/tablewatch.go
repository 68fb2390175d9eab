package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// WatchOptions are those of `watch` alone. A filter that is empty lets everything pass.
type WatchOptions struct {
	Project, Domain, App string   // of the operand, or of the flags
	Kinds                []string // of events
	Statuses             []string // words of subjects.HeaderAppStatus

	Output       Output
	Events       bool
	Once         bool
	Latest       bool
	HeadersOnly  bool
	BucketStream string            // empty: that of the bucket
	From         appwatch.Position // resume behind it; zero: begin with a snapshot
	At           time.Time         // zero: now

	Until           string // a word of subjects.HeaderAppStatus, or DELETED; empty: until Ctrl-C
	Generation      uint64
	ResourceVersion string
	UID             string
	AllowFailed     bool
}

// Output is the form of the output of `watch`.
type Output string

// The values of [Output].
const (
	OutputTable Output = "table"
	OutputWide  Output = "wide"
	OutputJSON  Output = "json"
	OutputYAML  Output = "yaml"
	OutputName  Output = "name"
)

// Deleted is the [WatchOptions.Until] of an app that does not exist any more.
const Deleted = "DELETED"

// statusWord is the form of a status, also of one that a later version of appbridge has.
var statusWord = regexp.MustCompile(`^[A-Z][A-Z_]*$`).MatchString

func watchFilterOptions(c *Config) []option {
	const literal = "any text"
	return []option{
		define("project", "apps of this project; none: of all", &c.Watch.Project, text("name", literal, func(string) error { return nil })),
		define("domain", "apps of this domain; none: of all", &c.Watch.Domain, text("name", literal, func(string) error { return nil })),
		define("app", "apps of this name; none: all", &c.Watch.App, text("name", literal, func(string) error { return nil })),
		define("kind", "events of these kinds; none: all", &c.Watch.Kinds,
			optional(list("kinds", "created, updated and deleted, separated by commas", valid(func(s string) bool {
				return slices.Contains([]subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted}, subjects.EventKind(s))
			})))),
		define("bucket-stream", "stream with the entries of the bucket, where that is a mirror with another name; none: KV_ and the bucket", &c.Watch.BucketStream,
			text("name", "letters, digits, - and _", checkOptional(onlyForm(subjects.ValidateStream)))),
		define("status", "apps with one of these statuses; none: all", &c.Watch.Statuses,
			optional(list("statuses", "words like ACTIVE, PENDING, FAILED and STOPPED, separated by commas", valid(statusWord)))),
	}
}

func watchUntilOptions(c *Config) []option {
	return []option{
		define("until", "wait until the app has this status, or is DELETED; exit codes below", &c.Watch.Until,
			text("status", "a word like ACTIVE, PENDING, FAILED, STOPPED or DELETED", checkOptional(valid(statusWord)))),
		define("generation", "with until: only what Kubernetes reports for this generation or a newer one, as the answer to a deploy has it in "+subjects.HeaderGeneration,
			&c.Watch.Generation, sequence("number")),
		define("resource-version", "with until: only states at this version or a newer one, as the answer to a deploy or a stop has it in "+subjects.HeaderResourceVersion,
			&c.Watch.ResourceVersion, text("version", "a decimal number", checkOptional(valid(isVersion)))),
		define("uid", "with until: only the app with this uid, as the answer has it in "+subjects.HeaderUID, &c.Watch.UID,
			text("uid", "a uid without spaces", valid(func(s string) bool { return !strings.ContainsAny(s, " \t\r\n") }))),
		define("allow-failed", "with until: go on waiting when the app has FAILED", &c.Watch.AllowFailed, toggle()),
	}
}

func watchOutputOptions(c *Config) []option {
	return []option{
		short("o", define("output", "form of the output", &c.Watch.Output, word(OutputTable, OutputWide, OutputJSON, OutputYAML, OutputName))),
		short("e", define("events", "a line for each event instead of a table", &c.Watch.Events, toggle())),
		define("once", "print what there is and end", &c.Watch.Once, toggle()),
		define("headers-only", "read no Apps: no replicas and ages, documents without object", &c.Watch.HeadersOnly, toggle()),
		define("latest", "of an app that changes faster than it is read, the newest event alone", &c.Watch.Latest, toggle()),
	}
}

func watchPastOptions(c *Config) []option {
	return []option{
		define("from", "events behind this position of a document that was read before, without a snapshot", &c.Watch.From,
			position()),
		define("at", "the apps as they were at this time, or so long ago; none: as they are", &c.Watch.At, instant()),
	}
}

// sequence is a number of a stream or an object, 0 for none.
func sequence(kind string) codec[uint64] {
	return codec[uint64]{
		form:   form{kind: kind, want: "a whole number"},
		parse:  func(s string) (uint64, error) { return orForm(strconv.ParseUint(s, 10, 64)) },
		format: func(v uint64) string { return strconv.FormatUint(v, 10) },
	}
}

// position is a place in the stream, or empty for none.
func position() codec[appwatch.Position] {
	return codec[appwatch.Position]{
		form: form{kind: "position", want: "the position of a document, or a sequence of the stream", quoted: true},
		parse: func(s string) (appwatch.Position, error) {
			if s == "" {
				return appwatch.Position{}, nil
			}
			return orForm(appwatch.ParsePosition(s))
		},
		format: appwatch.Position.String,
	}
}

// maxClockSkew is how far the clock of the server that stored an event may be before this one.
const maxClockSkew = time.Minute

// instant is a time in the past, or a duration before the present.
func instant() codec[time.Time] {
	c := pointInTime()
	parse := c.parse
	c.want = "a time in the past like 2026-11-21T08:51:07Z (RFC 3339), or how long ago, like 90m"
	c.parse = func(s string) (time.Time, error) {
		if d, err := time.ParseDuration(s); err == nil && d >= 0 {
			return time.Now().Add(-d), nil
		}
		t, err := parse(s)
		if err == nil && time.Until(t) > maxClockSkew {
			return t, errors.New("it is in the future")
		}
		return t, err
	}
	return c
}

var isVersion = regexp.MustCompile(`^[1-9][0-9]*$`).MatchString

// watchOperand sets the filter from project[/domain[/app]].
func (w *WatchOptions) watchOperand(operands []string, found *problems) {
	const want = "want project, project/domain or project/domain/app, for example shop/production/search"
	if len(operands) == 0 {
		return
	}
	if len(operands) > 1 {
		found.add("%q: unexpected argument: one filter at a time, %s", natsconn.RedactURLs(operands[1]), want)
		return
	}
	parts := strings.SplitN(operands[0], "/", 3)
	if slices.Contains(parts, "") {
		found.add("%q: not a filter: %s", natsconn.RedactURLs(operands[0]), want)
		return
	}
	for i, field := range []*string{&w.Project, &w.Domain, &w.App}[:len(parts)] {
		if *field != "" && *field != parts[i] {
			found.add("%q contradicts --%s: leave one of the two out", natsconn.RedactURLs(operands[0]), []string{"project", "domain", "app"}[i])
			return
		}
		*field = parts[i]
	}
}

// checkApp finds a filter that no app can have.
func (w *WatchOptions) checkApp(found *problems) {
	const placeholder = "x"
	id := subjects.AppID{Project: cmp.Or(w.Project, placeholder), Domain: cmp.Or(w.Domain, placeholder), Name: cmp.Or(w.App, placeholder)}
	if err := id.Validate(); err != nil {
		found.add("%s; want the names of a project, a domain and an app", err)
	}
}

// checkWatch finds options of `watch` that contradict each other.
func checkWatch(cfg Config, set settings, good map[string]bool, found *problems) {
	given := func(name string) bool { return good[name] && set[name].text != "" }
	where := func(name string) string { return fmt.Sprintf("%s (from %s)", name, set[name].source) }
	for _, name := range []string{"generation", "resource-version", "uid", "allow-failed"} {
		if given(name) && cfg.Watch.Until == "" {
			found.add("%s needs until: it qualifies what is waited for", where(name))
		}
	}
	if w := cfg.Watch; w.Until != "" && (w.Project == "" || w.Domain == "" || w.App == "") {
		found.add("%s needs one app: want project/domain/app, for example shop/production/search", where("until"))
	}
	if given("since") && cfg.Since == SinceStart {
		found.add("since: start from %s: of logs alone; want a duration of at least 1ms, for example 10s or 1h30m", set["since"].source)
	}
	for _, pair := range []struct{ one, other, why string }{
		{"until", "kind", "what is waited for is not filtered"},
		{"until", "status", "what is waited for is not filtered"},
		{"until", "once", "one waits, the other does not"},
		{"until", "at", "the past does not change"},
		{"until", "since", "the past does not change"},
		{"until", "since-time", "the past does not change"},
		{"until", "from", "the snapshot is needed"},
		{"at", "events", "an instant has no events"},
		{"at", "since", "an instant is not a period"},
		{"at", "since-time", "an instant is not a period"},
		{"at", "from", "both set the beginning"},
		{"at", "kind", "an instant has no events"},
		{"from", "since", "both set the beginning"},
		{"from", "since-time", "both set the beginning"},
	} {
		if given(pair.one) && given(pair.other) && isSet(set[pair.one].text) && isSet(set[pair.other].text) {
			found.add("%s contradicts %s: %s; leave one of the two out", where(pair.one), where(pair.other), pair.why)
		}
	}
	table := cfg.Watch.Output == OutputTable || cfg.Watch.Output == OutputWide
	past := cfg.Since != 0 || !cfg.SinceTime.IsZero() || !cfg.Watch.From.IsZero()
	if given("kind") && (cfg.Watch.Once || table && !cfg.Watch.Events) && !past {
		found.add("%s needs events: it selects events, not apps", where("kind"))
	}
	if cfg.Watch.Once && cfg.Watch.Events && !past {
		found.add("%s contradicts %s: what there is are apps, not events; leave one of the two out, or add since or from", where("events"), where("once"))
	}
}

// isSet reports whether a text is neither that of a switch that is off nor of no number.
func isSet(text string) bool { return text != "false" && text != "0" }
