package kservice_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

type schemaField struct {
	Name     string `json:"name"`
	JSONName string `json:"jsonName"`
	Number   int    `json:"number"`
	Type     string `json:"type"`
	Oneof    string `json:"oneof"`
}

// runSchema compares Flyte's message layouts with ours, both ways.
func runSchema(t *testing.T, path string) int {
	var schema struct {
		Messages map[string][]schemaField  `json:"messages"`
		Enums    map[string]map[string]int `json:"enums"`
	}
	if err := json.Unmarshal(corpus.ReadFile(t, path), &schema); err != nil {
		t.Fatal(err)
	}
	ours := ourSchema()
	requests := schemaOf(appv1.File_appbridge_v1_api_proto)
	for full, fields := range schema.Messages {
		name := ourName(full)
		want := map[int]schemaField{}
		for _, f := range fields {
			f.Type = ourType(f.Type)
			want[f.Number] = f
		}
		got, ok := ours.messages[name]
		if !ok {
			got, ok = requests.messages[name]
		}
		if !ok {
			t.Errorf("message %s (%s): missing", full, name)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("message %s:\n got %v\nwant %v", full, got, want)
		}
		delete(ours.messages, name)
	}
	for full, want := range schema.Enums {
		name := ourName(full)
		got, ok := ours.enums[name]
		if !ok {
			got, ok = requests.enums[name]
		}
		if !ok {
			t.Errorf("enum %s (%s): missing", full, name)
			continue
		}
		if !maps.Equal(got, want) {
			t.Errorf("enum %s:\n got %v\nwant %v", full, got, want)
		}
		delete(ours.enums, name)
	}
	for name := range ours.messages {
		t.Errorf("message %s: Flyte has none", name)
	}
	for name := range ours.enums {
		t.Errorf("enum %s: Flyte has none", name)
	}
	return len(schema.Messages) + len(schema.Enums)
}

// ourName is the name in package appbridge.v1 of a message or enum of Flyte.
func ourName(full string) string {
	// Where two of Flyte's packages have the same name.
	switch full {
	case "flyteidl2.logs.dataplane.LogLines":
		return "DataplaneLogLines"
	case "flyteidl2.common.ListRequest":
		return "CommonListRequest"
	}
	for _, pkg := range []string{"app", "common", "core", "task", "logs.dataplane"} {
		if name, ok := strings.CutPrefix(full, "flyteidl2."+pkg+"."); ok {
			return name
		}
	}
	return full
}

// ourType renames the message or enum at the end of a type as the corpus
// writes it, such as "repeated enum x.Y" or "map<string, x.Y>".
func ourType(written string) string {
	cut := strings.LastIndexByte(written, ' ') + 1
	last, closing := strings.CutSuffix(written[cut:], ">")
	out := written[:cut] + ourName(last)
	if closing {
		out += ">"
	}
	return out
}

type schemaOfOurs struct {
	messages map[string]map[int]schemaField
	enums    map[string]map[string]int
}

// ourSchema is what the corpus must list, and all of it. The requests of the app
// operations are not among it: the corpus may leave them out.
func ourSchema() schemaOfOurs {
	return schemaOf(
		appv1.File_appbridge_v1_app_proto,
		appv1.File_appbridge_v1_artifact_proto,
		appv1.File_appbridge_v1_common_proto,
		appv1.File_appbridge_v1_core_proto,
		appv1.File_appbridge_v1_event_proto,
		appv1.File_appbridge_v1_logs_proto,
		appv1.File_appbridge_v1_replica_proto,
		appv1.File_appbridge_v1_spec_proto,
	)
}

func schemaOf(files ...protoreflect.FileDescriptor) schemaOfOurs {
	out := schemaOfOurs{messages: map[string]map[int]schemaField{}, enums: map[string]map[string]int{}}
	for _, file := range files {
		out.addMessages(file.Messages())
		out.addEnums(file.Enums())
	}
	return out
}

func (s schemaOfOurs) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		m := messages.Get(i)
		if m.IsMapEntry() {
			continue
		}
		fields := map[int]schemaField{}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			field := schemaField{
				Name:     string(f.Name()),
				JSONName: f.JSONName(),
				Number:   int(f.Number()),
				Type:     typeOf(f),
			}
			if oneof := f.ContainingOneof(); oneof != nil {
				field.Oneof = string(oneof.Name())
			}
			fields[field.Number] = field
		}
		s.messages[relative(m)] = fields
		s.addMessages(m.Messages())
		s.addEnums(m.Enums())
	}
}

func (s schemaOfOurs) addEnums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		e := enums.Get(i)
		values := map[string]int{}
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			values[string(v.Name())] = int(v.Number())
		}
		s.enums[relative(e)] = values
	}
}

func typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s, %s>", typeOf(f.MapKey()), typeOf(f.MapValue()))
	case f.IsList():
		return "repeated " + elementOf(f)
	default:
		return elementOf(f)
	}
}

func elementOf(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return relative(f.Message())
	case protoreflect.EnumKind:
		return "enum " + relative(f.Enum())
	default:
		return f.Kind().String()
	}
}

// relative is the name within our package; others keep theirs.
func relative(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), "appbridge.v1.")
}
