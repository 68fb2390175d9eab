package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/appbridge/appbridge/subjects"
)

// document is docs/asyncapi.yaml.
type document map[string]any

func newDocument(t *testing.T) document {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal(read(t, "docs", "asyncapi.yaml"), &doc); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(doc) // numbers as the validator of JSON Schema takes them
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, text).(map[string]any)
}

// get is the value at a path of keys; nil if there is none.
func get(value any, path ...string) any {
	for _, key := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[key]
	}
	return value
}

func (d document) section(path ...string) map[string]any {
	m, _ := get(map[string]any(d), path...).(map[string]any)
	return m
}

// listOf are the texts of a list, sorted.
func listOf(value any) []string {
	var out []string
	list, _ := value.([]any)
	for _, v := range list {
		out = append(out, fmt.Sprint(v))
	}
	slices.Sort(out)
	return out
}

// same fails unless both have the same texts, whatever their order.
func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	for _, v := range slices.Compact(slices.Concat(got, want)) {
		switch {
		case !slices.Contains(got, v):
			t.Errorf("%s: docs/asyncapi.yaml lacks %q of package subjects", what, v)
		case !slices.Contains(want, v):
			t.Errorf("%s: docs/asyncapi.yaml has %q, package subjects has not", what, v)
		}
	}
	if len(want) == 0 {
		t.Errorf("%s: nothing to compare", what)
	}
}

// The document has every header of package subjects, every value of an enumeration and every code,
// and no other.
func TestAsyncAPIHeaders(t *testing.T) {
	t.Parallel()
	doc, all := newDocument(t), constants(t)
	headers := map[string][]any{} // by name: the schemas of its values
	for name, schema := range doc.section("components", "schemas") {
		if !strings.HasSuffix(name, "Headers") {
			continue
		}
		parts, _ := get(schema, "allOf").([]any)
		for _, part := range append(parts, schema) {
			properties, _ := get(part, "properties").(map[string]any)
			for header, values := range properties {
				headers[header] = append(headers[header], values)
			}
		}
	}
	same(t, "headers", slices.Collect(maps.Keys(headers)), valuesOf(all, constant.isHeader))

	codes := []string{}
	names := []string{}
	for n := range 1000 {
		if code, err := subjects.ParseCode(strconv.Itoa(n)); err == nil {
			codes, names = append(codes, code.HeaderValue()), append(names, code.String())
		}
	}
	types := []string{}
	for _, kind := range valuesOf(all, ofType("EventKind")) {
		types = append(types, subjects.EventKind(kind).Type())
	}
	for header, want := range map[string][]string{
		subjects.HeaderServiceErrorCode: codes,
		subjects.CEType:                 types,
		subjects.CESpecVersion:          {subjects.SpecVersion},
		subjects.CEDataSchema:           {subjects.DataSchema},
		subjects.CEDataContentType:      valuesOf(all, named("ContentType")),
		subjects.HeaderContentType:      valuesOf(all, named("ContentType")),
		subjects.HeaderOutcome:          valuesOf(all, ofType("Outcome")),
		subjects.HeaderLogEnd:           valuesOf(all, ofType("LogEnd")),
		subjects.HeaderLogNote:          valuesOf(all, ofType("LogNote")),
		subjects.HeaderKVOperation:      valuesOf(all, named("KV")),
		subjects.HeaderStatus:           valuesOf(all, named("Status")),
		subjects.HeaderSynthesized:      {subjects.FlagTrue},
		subjects.HeaderTraceOnly:        {subjects.FlagTrue},
	} {
		var got []string
		for _, schema := range headers[header] {
			got = append(got, listOf(get(schema, "enum"))...)
			if v, ok := get(schema, "const").(string); ok {
				got = append(got, v)
			}
		}
		same(t, header, slices.Compact(slices.Sorted(slices.Values(got))), slices.Clone(want))
	}
	// The reasons and the fields that may be missing are no closed set: words of a text, and of a pattern.
	reasons := fmt.Sprint(get(headers[subjects.HeaderReason][0], "description"))
	same(t, subjects.HeaderReason, regexp.MustCompile(`\b[A-Z_]{4,}\b`).FindAllString(reasons, -1), valuesOf(all, ofType("Reason")))
	pattern := fmt.Sprint(get(doc.section("components", "schemas", "eventHeaders", "properties"), subjects.HeaderTruncated, "pattern"))
	fields := regexp.MustCompile(`[a-z_]+`).FindAllString(pattern, -1)
	same(t, subjects.HeaderTruncated, slices.Compact(slices.Sorted(slices.Values(fields))), valuesOf(all, named("Truncated")))
	description := fmt.Sprint(get(headers[subjects.HeaderServiceErrorCode][0], "description"))
	same(t, "names of codes", strings.Split(description, ", "), names)
	parameter := doc.section("components", "parameters", "kind")
	same(t, "kinds of events", listOf(parameter["enum"]), valuesOf(all, ofType("EventKind")))
	options := doc.section("components", "schemas", "logOptions", "properties")
	same(t, "formats of logs", listOf(get(options, "format", "enum")), valuesOf(all, ofType("LogFormat")))
}

// The options of a request for logs are those of docs/logs.md.
func TestAsyncAPILogOptions(t *testing.T) {
	t.Parallel()
	_, section, ok := strings.Cut(string(read(t, "docs", "logs.md")), "\n## Options\n")
	if !ok {
		t.Fatal("docs/logs.md has no options")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		want = append(want, row[1])
	}
	got := newDocument(t).section("components", "schemas", "logOptions", "properties")
	same(t, "options", slices.Collect(maps.Keys(got)), want)
}

// The channels are the subjects that package subjects builds, and no other but those of NATS itself.
func TestAsyncAPISubjects(t *testing.T) {
	t.Parallel()
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	all := constants(t)
	id := subjects.AppID{Project: "PROJECT", Domain: "DOMAIN", Name: "APP"}
	var want []string
	add := func(subject string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"PROJECT", "DOMAIN", "APP", "KIND", "STREAM", "MESSAGE"} {
			subject = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(subject, "{"+strings.ToLower(name)+"}")
		}
		want = append(want, subject)
	}
	event, err := s.Event(id, subjects.Created)
	add(strings.TrimSuffix(event, string(subjects.Created))+"KIND", err)
	add(s.Lost(), nil)
	add(s.Notice(), nil)
	key, err := id.Key()
	add(subjects.BucketSubject(subjects.DefaultBucket, key), err)
	for _, op := range valuesOf(all, ofType("LogOp")) {
		add(s.Logs(subjects.LogOp(op), id))
	}
	add(s.LogsOut(id.Project, "STREAM"))
	add(s.LogsStop(id.Project, "STREAM"))
	add(s.LogsAck(id.Project, "STREAM", "MESSAGE"))
	for _, op := range valuesOf(all, ofType("APIOp")) {
		add(s.API(subjects.APIOp(op), id))
	}
	add(s.APIList("", ""))
	add(s.APIList(id.Project, ""))
	add(s.APIList(id.Project, id.Domain))
	want = append(want, "$SRV.{verb}", "$SRV.{verb}.{service}", "$SRV.{verb}.{service}.{instance}")
	var got []string
	for _, channel := range newDocument(t).section("channels") {
		if address, ok := get(channel, "address").(string); ok {
			got = append(got, address)
		}
	}
	same(t, "subjects", got, want)
}

// headersOf returns the schemas of the headers of a message.
func (d document) headersOf(t *testing.T) func(message string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7) // of a schema in an AsyncAPI document
	c.AssertFormat()
	if err := c.AddResource("file:///asyncapi.json", map[string]any(d)); err != nil {
		t.Fatal(err)
	}
	return func(message string) *jsonschema.Schema {
		t.Helper()
		schema, err := c.Compile("file:///asyncapi.json" + fmt.Sprint(get(d.section("components", "messages", message), "headers", "$ref")))
		if err != nil {
			t.Fatal(err)
		}
		return schema
	}
}

// The event that docs/consuming.md shows, as it is on the wire, is one.
func TestDocumentedEvent(t *testing.T) {
	t.Parallel()
	_, block, ok := strings.Cut(string(read(t, "docs", "consuming.md")), "\n```\nHMSG ")
	if !ok {
		t.Fatal("docs/consuming.md has no HMSG")
	}
	block, _, _ = strings.Cut(block, "\n```\n")
	head, body, _ := strings.Cut(block, "\n\n")
	line, head, _ := strings.Cut(head, "\n")
	body = strings.ReplaceAll(body, "\n", "")
	header := map[string]any{}
	version, rest, _ := strings.Cut(head, "\n")
	for h := range strings.SplitSeq(rest, "\n") {
		name, value, _ := strings.Cut(h, ": ")
		header[name] = value
	}
	if err := newDocument(t).headersOf(t)("updated").Validate(header); err != nil {
		t.Error(err)
	}
	newSchemas(t).valid(t, "the body", eventSchema, []byte(body))
	size := len(strings.ReplaceAll(head, "\n", "\r\n")) + len("\r\n\r\n")
	fields := strings.Fields(line)
	if version != "NATS/1.0" || len(fields) != 5 || fields[3] != strconv.Itoa(size) || fields[4] != strconv.Itoa(size+len(body)) {
		t.Errorf("got %s, HMSG %s, want sizes %d %d", version, line, size, size+len(body))
	}
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if _, kind, err := names.ParseEvent(fields[0]); err != nil || kind != subjects.Updated {
		t.Errorf("subject %s: %v, %v", fields[0], kind, err)
	}
}

// The golden messages have the headers of their messages in the document; what is wrong is refused.
func TestAsyncAPIGoldenHeaders(t *testing.T) {
	t.Parallel()
	headers := newDocument(t).headersOf(t)
	for file, message := range map[string]string{
		"created.txt": "created", "updated.txt": "updated", "deleted.txt": "deleted", "deleted-missed.txt": "deleted", "entry.txt": "entry", "marker.txt": "marker",
	} {
		schema := headers(message)
		header, _ := golden(t, file)
		delete(header, "")
		value := map[string]any{}
		for name, v := range header {
			value[name] = v
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for name, spoiled := range map[string]any{
			subjects.CEType: "org.flyte.app.moved.v1", subjects.CEDataSchema: "appbridge.v2", subjects.CETime: "yesterday", subjects.CEID: nil, subjects.CESource: "production",
			subjects.CESubject: "shop", subjects.HeaderUID: nil, subjects.HeaderPreviousSequence: "0", subjects.HeaderSynthesized: "false", subjects.HeaderTruncated: "name",
		} {
			wrong := maps.Clone(value)
			if wrong[name] = spoiled; spoiled == nil {
				delete(wrong, name)
			}
			if err := schema.Validate(wrong); err == nil {
				t.Errorf("%s: accepted with %s %v", file, name, spoiled)
			}
		}
		for _, other := range []string{"created", "updated", "deleted", "entry", "marker"} {
			if other == message {
				continue
			}
			if err := headers(other).Validate(value); err == nil {
				t.Errorf("%s has the headers of %s", file, other)
			}
		}
	}
}

// No Go module has the schema of AsyncAPI 3: the structure is checked here, as the specification has
// it. Every reference leads somewhere, and everything is used.
func TestAsyncAPIStructure(t *testing.T) {
	t.Parallel()
	doc := newDocument(t)
	if doc["asyncapi"] != "3.0.0" || get(doc["info"], "title") == nil || get(doc["info"], "version") == nil {
		t.Errorf("asyncapi %v, info %v", doc["asyncapi"], doc["info"])
	}
	allowed(t, "the document", map[string]any(doc), "asyncapi", "info", "defaultContentType", "servers", "channels", "operations", "components")
	used := doc.resolveAll(t)
	for kind, section := range doc.section("components") {
		for name := range section.(map[string]any) {
			if !used["#/components/"+kind+"/"+name] {
				t.Errorf("nothing refers to %s/%s", kind, name)
			}
		}
	}
	for name, channel := range doc.section("channels") {
		allowed(t, name, channel, "address", "description", "messages", "parameters")
		address, isText := get(channel, "address").(string)
		if !isText && get(channel, "address") != nil || len(doc.section("channels", name, "messages")) == 0 {
			t.Errorf("channel %s: address %v, messages %v", name, get(channel, "address"), get(channel, "messages"))
		}
		var inAddress []string
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(address, -1) {
			inAddress = append(inAddress, m[1])
		}
		parameters := slices.Sorted(maps.Keys(doc.section("channels", name, "parameters")))
		if slices.Sort(inAddress); !slices.Equal(inAddress, parameters) {
			t.Errorf("channel %s: address %s has parameters %v", name, address, parameters)
		}
		if !used["#/channels/"+name] {
			t.Errorf("no operation has channel %s", name)
		}
	}
	for name, operation := range doc.section("operations") {
		allowed(t, name, operation, "action", "channel", "summary", "messages", "reply")
		if action := get(operation, "action"); action != "send" && action != "receive" {
			t.Errorf("operation %s: action %v", name, action)
		}
		doc.messagesOf(t, name, operation)
		if reply := get(operation, "reply"); reply != nil {
			allowed(t, name+" reply", reply, "channel", "messages")
			doc.messagesOf(t, name+" reply", reply)
		}
	}
	for name, message := range doc.section("components", "messages") {
		allowed(t, name, message, "title", "summary", "contentType", "headers", "payload")
		if get(message, "payload") == nil {
			t.Errorf("message %s has no payload", name)
		}
	}
}

func allowed(t *testing.T, what string, value any, keys ...string) {
	t.Helper()
	for key := range value.(map[string]any) {
		if !slices.Contains(keys, key) {
			t.Errorf("%s has %q", what, key)
		}
	}
}

// messagesOf checks that an operation's channel is a channel, and has the operation's messages.
func (d document) messagesOf(t *testing.T, what string, operation any) {
	t.Helper()
	channel := fmt.Sprint(get(operation, "channel", "$ref"))
	if !strings.HasPrefix(channel, "#/channels/") {
		t.Errorf("%s: channel %s", what, channel)
	}
	messages, _ := get(operation, "messages").([]any)
	for _, m := range messages {
		if ref := fmt.Sprint(get(m, "$ref")); !strings.HasPrefix(ref, channel+"/messages/") {
			t.Errorf("%s: message %s is not of %s", what, ref, channel)
		}
	}
}

// resolveAll checks every reference and returns the local ones.
func (d document) resolveAll(t *testing.T) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	var walk func(value any)
	walk = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			if ref, ok := value["$ref"].(string); ok {
				used[ref] = true
				if err := d.resolve(ref); err != nil {
					t.Errorf("%s: %v", ref, err)
				}
			}
			for _, v := range value {
				walk(v)
			}
		case []any:
			for _, v := range value {
				walk(v)
			}
		}
	}
	walk(map[string]any(d))
	if len(used) < 100 {
		t.Errorf("%d references, want more", len(used))
	}
	return used
}

// resolve finds what a reference names, in the document or in a file beside it.
func (d document) resolve(ref string) error {
	u, err := url.Parse(ref)
	if err != nil {
		return err
	}
	var value any = map[string]any(d)
	if u.Path != "" {
		data, err := os.ReadFile(filepath.Join(root, "docs", filepath.FromSlash(u.Path)))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &value); err != nil {
			return err
		}
	}
	if get(value, strings.Split(strings.TrimPrefix(u.Fragment, "/"), "/")...) == nil {
		return fmt.Errorf("leads nowhere")
	}
	return nil
}
