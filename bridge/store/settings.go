package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// class is what a value of a setting means for what is stored.
type class int

const (
	noted   class = iota // it is logged: readers or operators should know of it
	unsafe               // it can lose what was acknowledged: refused without AllowUnsafeStream
	refused              // it changes, drops or rejects what is stored
)

// setting is a field of a stream's configuration. A value that no rule applies to is harmless.
type setting struct {
	field  string // the path in jetstream.StreamConfig; "" for a field that only the server has
	json   string // the name of such a field
	stream []rule // of the event stream
	bucket []rule // of the bucket's stream
}

// rule classifies some values of a setting.
type rule struct {
	class   class
	values  string // the values that it is about
	why     string
	applies func(configured) bool
	repair  string // "": that of the class
}

// configured is a configuration with the facts that decide whether it is fit.
type configured struct {
	jetstream.StreamConfig
	holds  string   // the subjects that the stream has to hold
	ours   []string // all subjects of this bridge
	server string   // version of the connected server
}

// holdsPlace stands in a reason for the subjects that the stream has to hold.
const holdsPlace = "<subjects>"

// settings classifies each field of a stream's configuration. docs/operate.md has it as a table.
var settings = []setting{
	{field: "Name"},
	{field: "Description"},
	{
		field:  "Subjects",
		stream: []rule{{class: refused, values: "any other", why: "it has to hold " + holdsPlace + " alone", applies: otherSubjects, repair: "choose another --stream, or the --prefix that belongs to it"}},
		bucket: []rule{{class: refused, values: "any other", why: "it has to hold " + holdsPlace + " alone", applies: otherSubjects}},
	},
	{
		field: "Retention",
		stream: []rule{
			{class: refused, values: "`workqueue`", why: "one reader empties it for all others", applies: func(c configured) bool { return c.Retention == jetstream.WorkQueuePolicy }},
			{class: unsafe, values: "`interest`", why: "it drops events without a consumer", applies: func(c configured) bool { return c.Retention == jetstream.InterestPolicy }},
		},
		bucket: []rule{{class: refused, values: "any but `limits`", why: "readers would empty it", applies: func(c configured) bool { return c.Retention != jetstream.LimitsPolicy }}},
	},
	same("MaxConsumers",
		rule{class: refused, values: "1", why: "a bridge needs two consumers", applies: func(c configured) bool { return c.MaxConsumers == 1 }},
		rule{class: noted, values: "2 or more", why: "bridges and readers share them", applies: func(c configured) bool { return c.MaxConsumers > 1 }}),
	{field: "MaxMsgs", bucket: []rule{{class: refused, values: "above 0", why: "it would refuse or drop apps", applies: func(c configured) bool { return c.MaxMsgs > 0 }}}},
	{field: "MaxBytes", bucket: []rule{{class: refused, values: "above 0", why: "it would refuse or drop apps", applies: func(c configured) bool { return c.MaxBytes > 0 }}}},
	{
		field: "Discard",
		stream: []rule{{class: noted, values: "`new` with a limit", why: "a full stream refuses events, which then wait", applies: func(c configured) bool {
			return c.Discard == jetstream.DiscardNew && (c.MaxMsgs > 0 || c.MaxBytes > 0)
		}}},
	},
	same("DiscardNewPerSubject", rule{class: refused, values: "`true`", why: "it refuses an app's next message", applies: func(c configured) bool { return c.DiscardNewPerSubject }}),
	{field: "MaxAge", bucket: []rule{{class: refused, values: "above 0", why: "entries vanish", applies: func(c configured) bool { return c.MaxAge > 0 }}}},
	{
		field:  "MaxMsgsPerSubject",
		stream: []rule{{class: unsafe, values: "above 0", why: "it drops history", applies: func(c configured) bool { return c.MaxMsgsPerSubject > 0 }}},
		bucket: []rule{{class: noted, values: "any but 1", why: "replaced entries stay", applies: func(c configured) bool { return c.MaxMsgsPerSubject != 1 }}},
	},
	{
		field:  "MaxMsgSize",
		stream: []rule{{class: noted, values: "above 0", why: "larger events are truncated", applies: func(c configured) bool { return c.MaxMsgSize > 0 }}},
		bucket: []rule{{class: refused, values: "above 0", why: "it would refuse apps", applies: func(c configured) bool { return c.MaxMsgSize > 0 }}},
	},
	same("Storage", rule{class: unsafe, values: "`memory`", why: "it forgets at a restart", applies: func(c configured) bool { return c.Storage != jetstream.FileStorage }}),
	{field: "Replicas"},
	same("NoAck", rule{class: refused, values: "`true`", why: "nothing is acknowledged", applies: func(c configured) bool { return c.NoAck }}),
	{
		field: "Duplicates",
		stream: []rule{{class: noted, values: "above 2 minutes", why: "an event that was purged is rejected for so long", applies: func(c configured) bool {
			return c.Duplicates > DuplicateWindow
		}}},
	},
	{field: "Placement.Cluster"},
	{field: "Placement.Tags"},
	{json: "placement.preferred"},
	same("Mirror", rule{class: refused, values: "any", why: "it is fed by another stream", applies: func(c configured) bool { return c.Mirror != nil }}),
	same("Sources", rule{class: refused, values: "any", why: "it is fed by another stream", applies: func(c configured) bool { return len(c.Sources) > 0 }}),
	same("Sealed", rule{class: refused, values: "`true`", why: "it takes no message for ever", applies: func(c configured) bool { return c.Sealed }}),
	{field: "DenyDelete"},
	{
		field:  "DenyPurge",
		stream: []rule{{class: noted, values: "`true`", why: "the fillers of a lost range stay", applies: func(c configured) bool { return c.DenyPurge }}},
		bucket: []rule{{class: refused, values: "`true`", why: "keys cannot be removed", applies: func(c configured) bool { return c.DenyPurge }}},
	},
	{field: "AllowRollup", stream: []rule{{class: noted, values: "`true`", why: "a client's roll-up removes events", applies: func(c configured) bool { return c.AllowRollup }}}},
	{field: "Compression"},
	same("FirstSeq", rule{class: noted, values: "above 1, on nats-server 2.11.0 and 2.11.1", why: "the server empties it at its next restart; upgrade the server", applies: func(c configured) bool {
		return c.FirstSeq > 1 && (c.server == "2.11.0" || c.server == "2.11.1")
	}}),
	same("SubjectTransform", rule{class: refused, values: "any", why: "messages are stored under other subjects", applies: func(c configured) bool { return c.SubjectTransform != nil }}),
	{field: "RePublish.Source"},
	same("RePublish.Destination",
		rule{class: refused, values: "a subject of appbridge", why: "copies would pass for messages of appbridge", applies: republishesToOurs},
		rule{class: noted, values: "any other", why: "its readers get a copy of every message, whatever their rights here", applies: func(c configured) bool { return c.RePublish != nil && !republishesToOurs(c) }}),
	{field: "RePublish.HeadersOnly"},
	{field: "AllowDirect"},
	{field: "MirrorDirect"},
	same("ConsumerLimits.InactiveThreshold",
		rule{class: refused, values: "below 1 minute", why: "the server refuses the consumers of appbridge, which need 1m0s", applies: func(c configured) bool {
			return c.ConsumerLimits.InactiveThreshold > 0 && c.ConsumerLimits.InactiveThreshold < consumerIdle
		}},
		rule{class: noted, values: "1 minute or more", why: "a durable consumer that nobody reads is removed after it, with its position", applies: func(c configured) bool {
			return c.ConsumerLimits.InactiveThreshold >= consumerIdle
		}}),
	{field: "ConsumerLimits.MaxAckPending"},
	{field: "Metadata"},
	{field: "Template"},
	{field: "AllowMsgTTL"},
	{
		field: "SubjectDeleteMarkerTTL",
		stream: []rule{{class: refused, values: "above 0 with `max_age`", why: "the server writes markers on the subjects of events", applies: func(c configured) bool {
			return c.SubjectDeleteMarkerTTL > 0 && c.MaxAge > 0
		}}},
	},
	same("AllowMsgCounter", rule{class: refused, values: "`true`", why: "it takes counters alone", applies: func(c configured) bool { return c.AllowMsgCounter }}),
	{field: "AllowAtomicPublish"},
	{field: "AllowMsgSchedules"},
	same("PersistMode", rule{class: unsafe, values: "`async`", why: "it acknowledges before it writes", applies: func(c configured) bool { return c.PersistMode == jetstream.AsyncPersistMode }}),
	{field: "AllowBatchPublish"},
}

// same is a setting with the same rules for the event stream and the bucket's.
func same(field string, rules ...rule) setting {
	return setting{field: field, stream: rules, bucket: rules}
}

func otherSubjects(c configured) bool { return len(c.Subjects) != 1 || c.Subjects[0] != c.holds }

func republishesToOurs(c configured) bool {
	if c.RePublish == nil {
		return false
	}
	for _, ours := range c.ours {
		if overlap(c.RePublish.Destination, ours) {
			return true
		}
	}
	return false
}

// overlap reports whether a subject may match both patterns. A token with a function of a subject
// transform, such as {{wildcard(1)}} or $1, may become any token.
func overlap(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		if x[i] == ">" || y[i] == ">" {
			return true
		}
		if x[i] != y[i] && !anyToken(x[i]) && !anyToken(y[i]) {
			return false
		}
	}
	return len(x) == len(y)
}

func anyToken(token string) bool {
	return token == "*" || strings.Contains(token, "{{") || strings.HasPrefix(token, "$") && strings.Trim(token[1:], "0123456789") == ""
}

// configured returns the configuration of the event stream, or of the bucket's, for the rules.
func (s *Storage) configured(cfg jetstream.StreamConfig, holds string) configured {
	c := configured{StreamConfig: cfg, holds: holds}
	c.ours = []string{s.Config.Prefix + ".>", subjects.BucketFilter(s.Config.Bucket), subjects.JetStreamAPI("") + ">"}
	if nc := s.JS.Conn(); nc != nil {
		c.server = nc.ConnectedServerVersion()
	}
	return c
}

// finding is a setting that a rule applies to.
type finding struct {
	rule
	text string // "<setting> <value>: <reason>"
}

// check returns what the rules find. rulesOf returns those of the event stream, or of the bucket's.
func (c configured) check(rulesOf func(setting) []rule) (found []finding) {
	for _, s := range settings {
		for _, r := range rulesOf(s) {
			if r.applies(c) {
				why := strings.ReplaceAll(r.why, holdsPlace, c.holds)
				found = append(found, finding{r, fmt.Sprintf("%s %s: %s", s.name(), c.value(s.field), why)})
			}
		}
	}
	return found
}

func ofStream(s setting) []rule { return s.stream }
func ofBucket(s setting) []rule { return s.bucket }

// name is how the JSON of a stream's configuration names the setting.
func (s setting) name() string {
	if s.field == "" {
		return s.json
	}
	of := reflect.TypeFor[jetstream.StreamConfig]()
	var names []string
	for part := range strings.SplitSeq(s.field, ".") {
		field, _ := of.FieldByName(part)
		names = append(names, jsonName(field))
		of = structOf(field.Type)
	}
	return strings.Join(names, ".")
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// structOf is the struct that a type is or points to, the type itself if there is none.
func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		return t.Elem()
	}
	return t
}

// value is the value of a field as an operator reads it: that of the JSON, durations in words.
func (c configured) value(path string) string {
	v := reflect.ValueOf(c.StreamConfig)
	for part := range strings.SplitSeq(path, ".") {
		v = reflect.Indirect(v).FieldByName(part)
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String()
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // subjects end in >
	if err := e.Encode(v.Interface()); err != nil {
		return fmt.Sprint(v.Interface())
	}
	return strings.Trim(text.String(), "\"\n")
}

// unknownSettings are the names of the values in the JSON of a stream's configuration for which
// settings has no row: a newer server may have settings that the client library does not know.
func unknownSettings(config json.RawMessage) (unknown []string) {
	known := map[string]bool{}
	for _, s := range settings {
		known[s.name()] = true
	}
	var walk func(of reflect.Type, prefix string, raw json.RawMessage)
	walk = func(of reflect.Type, prefix string, raw json.RawMessage) {
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return // a list: its setting is known as a whole
		}
		fields := map[string]reflect.Type{}
		for i := range of.NumField() {
			fields[jsonName(of.Field(i))] = structOf(of.Field(i).Type)
		}
		for name, value := range values {
			inner := fields[name]
			switch path := prefix + name; {
			case known[path] || slices.Contains(zeroes, string(value)):
			case inner == nil:
				unknown = append(unknown, path)
			case inner.Kind() == reflect.Struct:
				walk(inner, path+".", value)
			}
		}
	}
	walk(reflect.TypeFor[jetstream.StreamConfig](), "", config)
	slices.Sort(unknown)
	return unknown
}

// zeroes are the values of a setting that is not set.
var zeroes = []string{"null", "false", "0", `""`, "[]", "{}"}
