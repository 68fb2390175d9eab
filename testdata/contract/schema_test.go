package contract

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/appbridge/appbridge/subjects"
	_ "github.com/appbridge/appbridge/subjects/appv1" // registers the messages
)

// root is the root of the repository.
var root = filepath.Join("..", "..")

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, data []byte) any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return value
}

// schemas are the committed schema and its strict form, which is wrong for readers and right for this
// repository: it accepts no field and no value that it does not name.
type schemas struct {
	published, strict *jsonschema.Compiler
}

func newSchemas(t *testing.T) schemas {
	t.Helper()
	compiler := func(doc any) *jsonschema.Compiler {
		c := jsonschema.NewCompiler()
		c.AssertFormat()
		if err := c.AddResource(subjects.DataSchema, doc); err != nil {
			t.Fatal(err)
		}
		return c
	}
	file := read(t, "docs", "schema", File)
	return schemas{published: compiler(parse(t, file)), strict: compiler(strict(parse(t, file)))}
}

// at compiles the schema at a JSON pointer, "" for the root.
func at(t *testing.T, c *jsonschema.Compiler, pointer string) *jsonschema.Schema {
	t.Helper()
	schema, err := c.Compile(subjects.DataSchema + "#" + pointer)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// valid fails unless the message, as published, is what the schemas at the root and at pointer accept.
func (s schemas) valid(t *testing.T, what, pointer string, message []byte) {
	t.Helper()
	value := parse(t, message)
	pointers := []string{pointer}
	if pointer == eventSchema || pointer == entrySchema {
		pointers = append(pointers, "")
	}
	for _, p := range pointers {
		if err := at(t, s.published, p).Validate(value); err != nil {
			t.Errorf("%s, schema %q: %v", what, p, err)
		}
		if err := at(t, s.strict, p).Validate(value); err != nil {
			t.Errorf("%s, strict schema %q: %v", what, p, err)
		}
	}
}

const (
	eventSchema = "/$defs/WatchResponse"
	entrySchema = "/$defs/App"
)

// strict removes from a schema what it accepts of later versions.
func strict(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, v := range value {
			out[key] = strict(v)
		}
		if _, ok := out["properties"].(map[string]any); ok && out["type"] == "object" {
			out["additionalProperties"] = false
		}
		return out
	case []any:
		out := []any{}
		for _, v := range value {
			if m, ok := v.(map[string]any); !ok || m["pattern"] != laterName {
				out = append(out, strict(v))
			}
		}
		return out
	default:
		return value
	}
}

const laterName = "^[A-Z][A-Z0-9_]*$"

// The committed schema is the one of the messages that programs link, and has the comments of the
// .proto files. `make verify` compares the comments too.
func TestSchemaIsGenerated(t *testing.T) {
	t.Parallel()
	var files []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(f protoreflect.FileDescriptor) bool {
		files = append(files, f)
		return true
	})
	want, err := Schema(files)
	if err != nil {
		t.Fatal(err)
	}
	committed := parse(t, read(t, "docs", "schema", File))
	if got := len(at(t, newSchemas(t).published, eventSchema).Properties); got != 3 {
		t.Errorf("a WatchResponse has %d properties, want 3", got)
	}
	comments := 0
	got, described := withoutDescriptions(committed, &comments), 0
	if !reflect.DeepEqual(got, withoutDescriptions(parse(t, want), &described)) {
		t.Errorf("docs/schema/%s differs from subjects/appv1: run make generate", File)
	}
	if comments < described+100 {
		t.Errorf("docs/schema/%s has %d descriptions", File, comments)
	}
}

// withoutDescriptions removes the descriptions of schemas. A property may have that name.
func withoutDescriptions(value any, removed *int) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, v := range value {
			if _, text := v.(string); key == "description" && text {
				*removed++
				continue
			}
			out[key] = withoutDescriptions(v, removed)
		}
		return out
	case []any:
		out := []any{}
		for _, v := range value {
			out = append(out, withoutDescriptions(v, removed))
		}
		return out
	default:
		return value
	}
}

// What is no message of the contract is refused.
func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	app := `"metadata":{"id":{"project":"shop","domain":"production","name":"checkout"}}`
	for _, test := range []struct {
		name, pointer, message string
		strict                 bool // only the strict schema refuses it
	}{
		{name: "nothing", pointer: "", message: `{}`},
		{name: "no object", pointer: "", message: `"createEvent"`},
		{name: "an event without a kind", pointer: eventSchema, message: `{}`},
		{name: "an event of two kinds", pointer: eventSchema, message: `{"createEvent":{},"deleteEvent":{}}`},
		{name: "an entry without metadata", pointer: "", message: `{"status":{}}`},
		{name: "an event with a wrong app", pointer: "", message: `{"createEvent":{"app":"checkout"}}`},
		{name: "names of the .proto file", pointer: "", message: `{"create_event":{"app":{}}}`},
		{name: "a number that is text", pointer: entrySchema, message: `{` + app + `,"status":{"currentReplicas":"2"}}`},
		{name: "a negative number", pointer: entrySchema, message: `{"status":{"currentReplicas":-1}}`},
		{name: "a number beyond 32 bits", pointer: entrySchema, message: `{"status":{"currentReplicas":4294967296}}`},
		{name: "a 64-bit number that is no text", pointer: entrySchema, message: `{"metadata":{"revision":7}}`},
		{name: "a 64-bit number that is none", pointer: entrySchema, message: `{"metadata":{"revision":"07"}}`},
		{name: "a time without a zone", pointer: entrySchema, message: `{"status":{"createdAt":"2026-03-01T12:00:00"}}`},
		{name: "a time of another zone", pointer: entrySchema, message: `{"status":{"createdAt":"2026-03-01T12:00:00+01:00"}}`},
		{name: "a date that does not exist", pointer: entrySchema, message: `{"status":{"createdAt":"2026-02-31T12:00:00Z"}}`},
		{name: "a duration in words", pointer: entrySchema, message: `{"spec":{"timeouts":{"requestTimeout":"5m"}}}`},
		{name: "a word that is no value", pointer: entrySchema, message: `{"status":{"conditions":[{"deploymentStatus":"active"}]}}`},
		{name: "a condition for a list", pointer: entrySchema, message: `{"status":{"conditions":{}}}`},
		{name: "a label that is no text", pointer: entrySchema, message: `{"metadata":{"labels":{"a":1}}}`},
		{name: "two members of a oneof", pointer: entrySchema, message: `{"spec":{"container":{},"pod":{}}}`},
		{name: "a Struct that is none", pointer: entrySchema, message: `{"spec":{"pod":{"podSpec":[]}}}`},
		{name: "a field of a later version", pointer: entrySchema, message: `{` + app + `,"mood":"good"}`, strict: true},
		{name: "a value of a later version", pointer: entrySchema, message: `{"status":{"conditions":[{"deploymentStatus":"DEPLOYMENT_STATUS_RESTING"}]}}`, strict: true},
	} {
		value := parse(t, []byte(test.message))
		if err := at(t, s.strict, test.pointer).Validate(value); err == nil {
			t.Errorf("%s: the strict schema accepts %s", test.name, test.message)
		}
		if err := at(t, s.published, test.pointer).Validate(value); (err == nil) != test.strict {
			t.Errorf("%s: got %v for %s", test.name, err, test.message)
		}
	}
}

// Every value of a real message has to have its type: with a value of another type in its place, the
// message is refused. Only a Struct has any.
func TestSchemaRefusesEveryWrongType(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	_, body := golden(t, "updated.txt")
	message, count := parse(t, body), 0
	schema := at(t, s.published, "")
	var spoil func(value any, path string, set func(any))
	spoil = func(value any, path string, set func(any)) {
		wrong := any(true)
		switch value := value.(type) {
		case map[string]any:
			for key, v := range value {
				spoil(v, path+"/"+key, func(v any) { value[key] = v })
			}
		case []any:
			for i, v := range value {
				spoil(v, path+"/"+string(rune('0'+i)), func(v any) { value[i] = v })
			}
		case bool:
			wrong = "true"
		}
		set(wrong)
		count++
		if err := schema.Validate(message); err == nil {
			t.Errorf("accepted with %v at %s", wrong, path)
		}
		set(value)
	}
	for key, v := range message.(map[string]any) {
		spoil(v, "/"+key, func(v any) { message.(map[string]any)[key] = v })
	}
	if err := schema.Validate(message); err != nil {
		t.Errorf("the message itself: %v", err)
	}
	if count < 40 {
		t.Errorf("%d values, want more", count)
	}
}

// golden returns the headers and the body of a golden message.
func golden(t *testing.T, name string) (header map[string]string, body []byte) {
	t.Helper()
	head, body, ok := bytes.Cut(read(t, "testdata", "golden", name), []byte("\n\n"))
	if !ok {
		t.Fatalf("%s has no body", name)
	}
	header = map[string]string{}
	lines := strings.Split(string(head), "\n")
	for _, line := range lines[1:] {
		name, value, ok := strings.Cut(line, ": ")
		if !ok {
			t.Fatalf("%s: header %q", name, line)
		}
		header[name] = value
	}
	header[""] = lines[0] // the subject
	return header, bytes.TrimSpace(body)
}

// mustJSON is for test data.
func mustJSON(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
