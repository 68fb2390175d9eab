package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Each field of jetstream.StreamConfig has a row, those of its structs as well unless the struct is
// refused as a whole: a field that is new in nats.go fails this test.
func TestSettingsCoverTheType(t *testing.T) {
	rows := map[string]setting{}
	for _, s := range settings {
		if _, twice := rows[s.name()]; twice {
			t.Errorf("%s has two rows", s.name())
		}
		rows[s.name()] = s
	}
	found := map[string]bool{}
	var walk func(of reflect.Type, path, name string)
	walk = func(of reflect.Type, path, name string) {
		for i := range of.NumField() {
			field := of.Field(i)
			path, name := path+field.Name, name+jsonName(field)
			row, exists := rows[name]
			found[name] = true
			switch inner := structOf(field.Type); {
			case exists && row.field != path:
				t.Errorf("the row of %s has the field %s, want %s", name, row.field, path)
			case exists && inner.Kind() == reflect.Struct:
				for _, rules := range [][]rule{row.stream, row.bucket} {
					if len(rules) != 1 || rules[0].class != refused || rules[0].values != "any" {
						t.Errorf("%s is a struct: it needs a row for each of its fields, or to be refused as a whole", name)
					}
				}
			case exists:
			case inner.Kind() == reflect.Struct:
				walk(inner, path+".", name+".")
			default:
				t.Errorf("the setting %s is not classified", name)
			}
		}
	}
	walk(reflect.TypeFor[jetstream.StreamConfig](), "", "")
	for name, row := range rows {
		if row.field != "" && !found[name] {
			t.Errorf("jetstream.StreamConfig has no %s", name)
		}
	}
}

// The server's own type has no setting that the client's lacks, but for those that a row names.
func TestSettingsOfServer(t *testing.T) {
	rows := map[string]bool{}
	for _, s := range settings {
		rows[s.name()] = true
	}
	var walk func(of reflect.Type, name string)
	walk = func(of reflect.Type, name string) {
		for i := range of.NumField() {
			field := of.Field(i)
			if !field.IsExported() {
				continue
			}
			name := name + jsonName(field)
			switch inner := structOf(field.Type); {
			case rows[name]:
			case inner.Kind() == reflect.Struct:
				walk(inner, name+".")
			default:
				t.Errorf("the server's setting %s is not classified", name)
			}
		}
	}
	walk(reflect.TypeFor[server.StreamConfig](), "")
}

func TestUnknownSettings(t *testing.T) {
	got := unknownSettings([]byte(`{"name":"A","max_age":5,"new_limit":7,"new_off":false,"new_list":[],
		"consumer_limits":{"max_ack_pending":3,"new_below":"x"},"placement":{"preferred":"n1"},"metadata":{"new":"no setting"},
		"sources":[{"name":"B","new_of_source":true}]}`))
	if want := []string{"consumer_limits.new_below", "new_limit"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// edit is an operator's change of a configuration. own is the prefix of the subjects that the stream
// holds.
type edit struct {
	name   string
	change func(c *jetstream.StreamConfig, own string)
	live   string // "": the server accepts it for an existing stream; else created
	want   string // in the refusal or the log; "": harmless
	effect string // of the setting on messages with the bridge's fence
}

type streamConfig = jetstream.StreamConfig

// created: the server refuses the edit of an existing stream, so it is made with the setting.
const created = "made"

// edits are those that the server accepts, live or at the creation, with at least one for each rule.
func edits(bucket bool) []edit {
	s := func(name string, change func(c *streamConfig, own string), want, effect string) edit {
		return edit{name: name, change: change, want: want, effect: effect}
	}
	made := func(e edit) edit { e.live = created; return e }
	all := []edit{
		s("description", func(c *streamConfig, _ string) { c.Description = "x" }, "", "stored"),
		s("other subjects", func(c *streamConfig, own string) { c.Subjects = []string{own + "other.>"} }, "subjects [", "no stream"),
		s("one consumer", func(c *streamConfig, _ string) { c.MaxConsumers = 1 }, "max_consumers 1: a bridge", "stored"),
		s("five consumers", func(c *streamConfig, _ string) { c.MaxConsumers = 5 }, "noted: max_consumers 5", "stored"),
		s("new per subject", func(c *streamConfig, _ string) {
			c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
		}, "discard_new_per_subject true", "rejected"),
		made(s("memory", func(c *streamConfig, _ string) { c.Storage = jetstream.MemoryStorage }, "unsafe: storage memory", "stored")),
		s("no ack", func(c *streamConfig, _ string) { c.NoAck = true }, "no_ack true", "no answer"),
		s("placement", func(c *streamConfig, _ string) { c.Placement = &jetstream.Placement{Tags: []string{"x"}} }, "", "stored"),
		made(s("mirror", func(c *streamConfig, _ string) { c.Subjects, c.Mirror = nil, &jetstream.StreamSource{Name: "ORIGIN"} }, "mirror {", "no stream")),
		s("sources", func(c *streamConfig, _ string) { c.Sources = []*jetstream.StreamSource{{Name: "ORIGIN"}} }, `sources [{"name":"ORIGIN"}]`, "stored"),
		s("sealed", func(c *streamConfig, _ string) { c.Sealed = true }, "sealed true", "rejected"),
		s("deny delete", func(c *streamConfig, _ string) { c.DenyDelete = true }, "", "stored"),
		s("compression", func(c *streamConfig, _ string) { c.Compression = jetstream.S2Compression }, "", "stored"),
		s("first seq", func(c *streamConfig, _ string) { c.FirstSeq = 5 }, "", "stored"),
		s("transform", func(c *streamConfig, own string) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: own + ">", Destination: "moved." + own + ">"}
		}, `subject_transform {"src":`, "elsewhere"),
		s("transform of nothing", func(c *streamConfig, _ string) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "nothing.>", Destination: "moved.>"}
		}, "subject_transform", "stored"),
		s("republish", func(c *streamConfig, own string) {
			c.RePublish = &jetstream.RePublish{Source: ">", Destination: "copies." + own + ">"}
		}, "noted: republish.dest copies.", "stored"),
		s("republish as a request", func(c *streamConfig, own string) {
			prefix := strings.TrimSuffix(strings.TrimPrefix(own, "$KV."), ".events.")
			c.RePublish = &jetstream.RePublish{Source: ">", Destination: strings.TrimSuffix(prefix, ".") + ".logs.get.>"}
		}, "republish.dest s", "stored"),
		s("no direct get", func(c *streamConfig, _ string) { c.AllowDirect = false }, "", "stored"),
		s("short threshold", func(c *streamConfig, _ string) { c.ConsumerLimits.InactiveThreshold = time.Second }, "consumer_limits.inactive_threshold 1s", "stored"),
		s("long threshold", func(c *streamConfig, _ string) { c.ConsumerLimits.InactiveThreshold = time.Hour }, "noted: consumer_limits.inactive_threshold 1h0m0s", "stored"),
		s("ack pending", func(c *streamConfig, _ string) { c.ConsumerLimits.MaxAckPending = 1 }, "", "stored"),
		s("message ttl", func(c *streamConfig, _ string) { c.AllowMsgTTL = true }, "", "stored"),
		s("batches", func(c *streamConfig, _ string) { c.AllowAtomicPublish, c.AllowBatchPublish = true, true }, "", "stored"),
		made(s("async", func(c *streamConfig, _ string) { c.PersistMode = jetstream.AsyncPersistMode }, "unsafe: persist_mode async", "stored")),
	}
	if bucket {
		return append(all,
			s("interest", func(c *streamConfig, _ string) { c.Retention = jetstream.InterestPolicy }, "retention interest", "gone"),
			s("messages", func(c *streamConfig, _ string) { c.MaxMsgs = 1 }, "max_msgs 1", "rejected"),
			s("bytes", func(c *streamConfig, _ string) { c.MaxBytes = 250 }, "max_bytes 250", "rejected"),
			s("age", func(c *streamConfig, _ string) { c.MaxAge = time.Hour }, "max_age 1h0m0s", "stored"),
			s("history", func(c *streamConfig, _ string) { c.MaxMsgsPerSubject = 5 }, "noted: max_msgs_per_subject 5", "stored"),
			s("size", func(c *streamConfig, _ string) { c.MaxMsgSize = 100 }, "max_msg_size 100", "rejected"),
			s("deny purge", func(c *streamConfig, _ string) { c.AllowRollup, c.DenyPurge = false, true }, "deny_purge true", "stored"),
			made(s("counter", func(c *streamConfig, _ string) { c.Discard, c.AllowMsgCounter = jetstream.DiscardOld, true }, "allow_msg_counter true", "rejected")),
			s("discard old", func(c *streamConfig, _ string) { c.Discard = jetstream.DiscardOld }, "", "stored"),
			s("no rollup", func(c *streamConfig, _ string) { c.AllowRollup = false }, "", "stored"),
			s("marker ttl", func(c *streamConfig, _ string) { c.SubjectDeleteMarkerTTL, c.AllowMsgTTL = time.Hour, true }, "", "stored"),
		)
	}
	return append(all,
		s("interest", func(c *streamConfig, _ string) { c.Retention = jetstream.InterestPolicy }, "unsafe: retention interest", "gone"),
		made(s("work queue", func(c *streamConfig, _ string) { c.Retention = jetstream.WorkQueuePolicy }, "retention workqueue", "stored")),
		s("more subjects", func(c *streamConfig, own string) { c.Subjects = append(c.Subjects, "more."+own+">") }, "subjects [", "stored"),
		s("limits", func(c *streamConfig, _ string) { c.MaxMsgs, c.MaxBytes, c.MaxAge = 1000, 1<<20, time.Hour }, "", "stored"),
		s("full, discard new", func(c *streamConfig, _ string) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew }, "noted: discard new", "rejected"),
		s("per subject", func(c *streamConfig, _ string) { c.MaxMsgsPerSubject = 1 }, "unsafe: max_msgs_per_subject 1", "gone"),
		s("size", func(c *streamConfig, _ string) { c.MaxMsgSize = 100 }, "noted: max_msg_size 100", "rejected"),
		s("duplicates", func(c *streamConfig, _ string) { c.Duplicates = time.Hour }, "noted: duplicate_window 1h0m0s", "stored"),
		s("deny purge", func(c *streamConfig, _ string) { c.DenyPurge = true }, "noted: deny_purge true", "stored"),
		s("rollup", func(c *streamConfig, _ string) { c.AllowRollup = true }, "noted: allow_rollup_hdrs true", "stored"),
		s("markers of age", func(c *streamConfig, _ string) {
			c.SubjectDeleteMarkerTTL, c.AllowMsgTTL, c.MaxAge = time.Hour, true, time.Hour
		}, "subject_delete_marker_ttl 1h0m0s", "stored"),
		s("schedules", func(c *streamConfig, _ string) { c.AllowMsgSchedules = true }, "", "stored"),
		made(s("counter", func(c *streamConfig, _ string) { c.AllowMsgCounter = true }, "allow_msg_counter true", "rejected")),
	)
}

// newStorage is a Storage on names of its own, of a server that is shared.
func newStorage(t *testing.T, js jetstream.JetStream, name string, log *zap.Logger) *Storage {
	t.Helper()
	s, err := subjects.New(name)
	if err != nil {
		t.Fatal(err)
	}
	return New(js, s, Config{
		Stream: name + "_events", Bucket: name, Prefix: name, ClusterName: "test", ClusterUID: "c1", Replicas: 1,
	}, log)
}

func establish(t *testing.T, s *Storage) {
	t.Helper()
	if err := errors.Join(s.Inspect(t.Context()), s.Identify(Checkpoint{}, 0), s.Establish(t.Context(), Checkpoint{})); err != nil {
		t.Fatal(err)
	}
}

// Each edit of a stream or a bucket that the server accepts is classified: a refused one by Inspect,
// and by the check of a running bridge, with the setting's name, until it is taken back.
func TestSettings(t *testing.T) {
	ns := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	js, err := jetstream.New(connectTo(t, ns.ClientURL()), jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), streamConfig{Name: "ORIGIN", Subjects: []string{"origin.>"}}); err != nil {
		t.Fatal(err)
	}
	hit := map[string]bool{}
	n := 0
	for _, bucket := range []bool{false, true} {
		for _, e := range edits(bucket) {
			of := map[bool]string{false: "stream", true: "bucket"}[bucket]
			n++
			name := fmt.Sprintf("s%d", n)
			t.Run(of+" "+e.name, func(t *testing.T) {
				e.check(t, js, name, bucket, hit)
			})
		}
	}
	for _, s := range settings {
		for of, rules := range map[string][]rule{"stream": s.stream, "bucket": s.bucket} {
			for _, r := range rules {
				if key := of + " " + s.name() + " " + r.why; !hit[key] && !strings.Contains(r.values, "2.11.0") {
					t.Errorf("no edit has the rule %q of the %s's %s", r.values, of, s.name())
				}
			}
		}
	}
}

func (e edit) check(t *testing.T, js jetstream.JetStream, name string, bucket bool, hit map[string]bool) {
	core, logs := observer.New(zap.InfoLevel)
	s := newStorage(t, js, name, zap.New(core))
	establish(t, s)
	info, own, rules, of := s.Stream, name+".events.", ofStream, "stream"
	if bucket {
		info, own, rules, of = s.Bucket, "$KV."+name+".", ofBucket, "bucket"
	}
	before, after := info.Config, info.Config
	after.Subjects = append([]string{}, before.Subjects...)
	e.change(&after, own)
	_, err := js.UpdateStream(t.Context(), after)
	switch {
	case (e.live == created) != (err != nil):
		t.Fatalf("the edit: %v, want %q", err, e.live)
	case e.live == created:
		if err := js.DeleteStream(t.Context(), after.Name); err != nil {
			t.Fatal(err)
		}
		after.Metadata = nil
		if _, err := js.CreateStream(t.Context(), after); err != nil {
			t.Fatal(err)
		}
	default:
		live := *s
		_, _, err := live.Present(t.Context())
		if errors.Is(err, ErrSizeChanged) {
			err = nil // the bridge makes its events again
		}
		e.judge(t, "a running bridge", err)
		if class, text, found := strings.Cut(e.want, ": "); found && class == "noted" && !strings.Contains(fmt.Sprint(logs.TakeAll()), text) {
			t.Errorf("the running bridge does not log %q", text)
		}
	}
	again := newStorage(t, js, name, zap.New(core))
	e.judge(t, "a start", again.Inspect(t.Context()))
	found := again.streamFindings()
	if bucket {
		found = again.bucketFindings()
	}
	for _, f := range found {
		for _, s := range settings {
			for _, r := range rules(s) {
				if strings.HasPrefix(f.text, s.name()+" ") && r.why == f.why {
					hit[of+" "+s.name()+" "+r.why] = true
				}
			}
		}
	}
	again.Config.AllowUnsafeStream = true
	if err := again.Inspect(t.Context()); (err != nil) != (e.class() == refused) {
		t.Errorf("with AllowUnsafeStream: %v", err)
	}
	if got := effect(t, js, after.Name, own); got != e.effect {
		t.Errorf("a message with the fence is %s, want %s", got, e.effect)
	}
	if _, err := js.UpdateStream(t.Context(), before); err == nil && e.live == "" {
		if _, _, err := s.Present(t.Context()); err != nil && !errors.Is(err, ErrSizeChanged) {
			t.Errorf("the setting is taken back: %v", err)
		}
	}
	for _, name := range []string{s.Config.Stream, before.Name} {
		_ = js.DeleteStream(t.Context(), name)
	}
}

func (e edit) class() class {
	if name, _, found := strings.Cut(e.want, ": "); found && name == "unsafe" {
		return unsafe
	} else if e.want == "" || found && name == "noted" {
		return noted
	}
	return refused
}

func (e edit) judge(t *testing.T, who string, err error) {
	t.Helper()
	config, is := errors.AsType[*app.ConfigError](err)
	switch text := strings.TrimPrefix(e.want, "unsafe: "); {
	case e.class() == noted && err != nil:
		t.Errorf("%s refuses: %v", who, err)
	case e.class() != noted && (!is || !strings.Contains(config.Problem, text)):
		t.Errorf("%s: got %v, want a refusal with %q", who, err, text)
	}
}

// effect is what becomes of messages that are appended with the bridge's fence.
func effect(t *testing.T, js jetstream.JetStream, stream, own string) string {
	t.Helper()
	handle, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	last := handle.CachedInfo().State.LastSeq
	var first uint64
	for i, subject := range []string{own + "a.b.c.x", own + "a.b.c.x", own + "a.b.c.y"} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		ack, err := js.PublishMsg(ctx, &nats.Msg{
			Subject: subject, Data: []byte(strings.Repeat("x", 100)),
			Header: nats.Header{subjects.HeaderExpectedLastSequence: {fmt.Sprint(last)}, subjects.HeaderMsgID: {fmt.Sprint(i)}},
		}, jetstream.WithRetryAttempts(0))
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrNoStreamResponse):
			return "no stream"
		case ErrorCodeOf(err) != 0:
			return "rejected"
		case err != nil:
			return "no answer"
		}
		if last = ack.Sequence; i == 0 {
			first = last
		}
		switch m, err := OrNone(MessageAt(t.Context(), js, stream, last)); {
		case err != nil:
			t.Fatal(err)
		case m == nil:
			return "gone"
		case m.Subject != subject:
			return "elsewhere"
		}
	}
	if m, err := OrNone(MessageAt(t.Context(), js, stream, first)); m == nil && err == nil && !strings.HasPrefix(own, "$KV.") {
		return "gone"
	}
	return "stored"
}

// The table of docs/operate.md is that of the program.
func TestSettingsInDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| setting | event stream | bucket |\n| --- | --- | --- |\n")
	for _, s := range settings {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", s.name(), inDocs(s.stream), inDocs(s.bucket))
	}
	if !strings.Contains(string(page), want.String()) {
		t.Errorf("docs/operate.md has another table of the settings, want\n%s", want.String())
	}
}

func inDocs(rules []rule) string {
	if len(rules) == 0 {
		return "any"
	}
	names := map[class]string{noted: "noted", unsafe: "**refused** without `--allow-unsafe-stream`", refused: "**refused**"}
	var cells []string
	for _, r := range rules {
		cells = append(cells, fmt.Sprintf("%s: %s: %s", r.values, names[r.class], strings.ReplaceAll(r.why, holdsPlace, "its own subjects")))
	}
	return strings.Join(cells, "; ")
}
