package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// published is a message as it is published: encoded by the function that the bridge calls.
func published(t *testing.T, m proto.Message) (data []byte, json bool) {
	t.Helper()
	data, form, err := appv1.Encode(m, subjects.ContentTypeJSON)
	if err != nil {
		t.Fatal(err)
	}
	return data, form == subjects.ContentTypeJSON
}

// The golden messages are what the schema says, and name it.
func TestGoldenMessages(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	for name, pointer := range map[string]string{
		"created.txt": eventSchema, "updated.txt": eventSchema, "deleted.txt": eventSchema, "deleted-missed.txt": eventSchema,
		"entry.txt": entrySchema,
	} {
		header, body := golden(t, name)
		s.valid(t, name, pointer, body)
		if got := header[subjects.CEDataSchema]; got != subjects.DataSchema {
			t.Errorf("%s: header %s is %q, want %q", name, subjects.CEDataSchema, got, subjects.DataSchema)
		}
	}
}

// corpusCase is a conversion of the conformance corpus.
type corpusCase struct {
	Expect struct {
		App    json.RawMessage `json:"app"`
		Binary []byte          `json:"appProtoBase64"`
	} `json:"expect"`
}

// The Apps that Flyte makes are what the schema says, in Flyte's JSON and in ours.
func TestConformanceApps(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	files, err := filepath.Glob(filepath.Join(root, "testdata", "conformance", "cases", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	given, ours, onlyBinary := 0, 0, 0
	for _, file := range files {
		var c corpusCase
		name := filepath.Base(file)
		mustJSON(t, read(t, "testdata", "conformance", "cases", name), &c)
		if len(c.Expect.App) > 0 {
			// "<now>" stands for a time of the clock.
			s.valid(t, name, entrySchema, bytes.ReplaceAll(c.Expect.App, []byte(`"<now>"`), []byte(`"2026-11-21T08:51:07Z"`)))
			given++
		}
		if len(c.Expect.Binary) > 0 {
			app := &appv1.App{}
			if err := proto.Unmarshal(c.Expect.Binary, app); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			data, isJSON := published(t, app)
			if !isJSON {
				onlyBinary++
				continue
			}
			s.valid(t, name, entrySchema, data)
			ours++
		}
	}
	t.Logf("%d Apps as given, %d as published, %d without a JSON form", given, ours, onlyBinary)
	if given < 80 || ours < 80 || onlyBinary == 0 {
		t.Errorf("too few: %d given, %d published, %d without a JSON form", given, ours, onlyBinary)
	}
}

// The answers that Flyte gives to replicas are what the schema says.
func TestConformanceReplicas(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	var cases []struct {
		Name   string
		Expect struct{ Replicas json.RawMessage }
	}
	mustJSON(t, read(t, "testdata", "conformance", "replicas.json"), &cases)
	count := 0
	for _, c := range cases {
		if len(c.Expect.Replicas) > 0 {
			s.valid(t, c.Name, "/$defs/ReplicaList", fmt.Appendf(nil, `{"items":%s}`, c.Expect.Replicas))
			count++
		}
	}
	if count < 3 {
		t.Errorf("%d answers, want more", count)
	}
}

// The events that Flyte sends are what the schema says.
func TestConformanceEvents(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	var cases []struct {
		Name   string
		Expect json.RawMessage
	}
	mustJSON(t, read(t, "testdata", "conformance", "events.json"), &cases)
	count := 0
	for _, c := range cases {
		var expect any
		mustJSON(t, c.Expect, &expect)
		each(expect, func(event map[string]any) {
			data, err := json.Marshal(event)
			if err != nil {
				t.Fatal(err)
			}
			s.valid(t, c.Name, eventSchema, bytes.ReplaceAll(data, []byte(`"\u003cnow\u003e"`), []byte(`"2026-11-21T08:51:07Z"`)))
			count++
		})
	}
	if count < 8 {
		t.Errorf("%d events, want more", count)
	}
}

// each calls f with every WatchResponse inside value.
func each(value any, f func(map[string]any)) {
	switch value := value.(type) {
	case map[string]any:
		for _, kind := range []string{"createEvent", "updateEvent", "deleteEvent"} {
			if _, ok := value[kind]; ok {
				f(value)
				return
			}
		}
		for _, v := range value {
			each(v, f)
		}
	case []any:
		for _, v := range value {
			each(v, f)
		}
	}
}

// Messages with every field set, and each member of every oneof, are what the schema says: no field
// of any message is missing in it.
func TestEveryField(t *testing.T) {
	t.Parallel()
	s := newSchemas(t)
	seen := map[protoreflect.FullName]bool{}
	for pick := range 6 { // the largest oneof has six members
		protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
			d := mt.Descriptor()
			if d.ParentFile().Package() != pkg || d.IsMapEntry() {
				return true
			}
			m := mt.New()
			fill(m, pick, 3, seen)
			data, isJSON := published(t, m.Interface())
			if !isJSON {
				t.Fatalf("%s has no JSON form", d.FullName())
			}
			s.valid(t, fmt.Sprintf("%s, pick %d", d.FullName(), pick), "/$defs/"+name(d), data)
			for i := range d.Fields().Len() {
				if f := d.Fields().Get(i); pick == 5 && !seen[f.FullName()] {
					t.Errorf("field %s was never set", f.FullName())
				}
			}
			return true
		})
	}
	if len(seen) < 250 {
		t.Errorf("%d fields, want all", len(seen))
	}
	t.Logf("%d fields", len(seen))
}

// fill sets every field of a message, down to a depth, and of each oneof the member that pick chooses.
func fill(m protoreflect.Message, pick, depth int, seen map[protoreflect.FullName]bool) {
	switch value := m.Interface().(type) {
	case *timestamppb.Timestamp:
		value.Seconds, value.Nanos = 1_772_366_400, int32(pick%4)*120_000_000
		return
	case *durationpb.Duration:
		value.Seconds, value.Nanos = int64(90-pick), 5000
		return
	case *structpb.Struct:
		value.Fields = map[string]*structpb.Value{"containers": structpb.NewListValue(&structpb.ListValue{}), "n": structpb.NewNumberValue(1.5)}
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && o.Fields().Get(pick%o.Fields().Len()) != f {
			continue
		}
		isMessage := f.Kind() == protoreflect.MessageKind && !f.IsMap()
		if isMessage && depth == 0 {
			continue
		}
		seen[f.FullName()] = true
		switch {
		case f.IsMap():
			entry, key := m.Mutable(f).Map(), protoreflect.ValueOfString("a.b/c").MapKey()
			if f.MapValue().Kind() != protoreflect.MessageKind {
				entry.Set(key, scalar(f.MapValue(), pick))
				continue
			}
			value := entry.NewValue()
			if depth > 0 {
				fill(value.Message(), pick, depth-1, seen)
			}
			entry.Set(key, value)
		case f.IsList() && isMessage:
			fill(m.Mutable(f).List().AppendMutable().Message(), pick, depth-1, seen)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f, pick))
		case isMessage:
			fill(m.Mutable(f).Message(), pick, depth-1, seen)
		default:
			m.Set(f, scalar(f, pick))
		}
	}
}

// scalar is a value other than the default one, and for some picks the largest.
func scalar(f protoreflect.FieldDescriptor, pick int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32([]int32{1, -1 << 31, 1<<31 - 1}[pick%3])
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64([]int64{1, -1 << 63, 1<<63 - 1}[pick%3])
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32([]uint32{1, 1<<32 - 1}[pick%2])
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64([]uint64{1, 1<<64 - 1}[pick%2])
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		if pick%4 == 3 {
			return protoreflect.ValueOfEnum(-7) // of a later version: a number in JSON
		}
		return protoreflect.ValueOfEnum(values.Get(1 + pick%(values.Len()-1)).Number())
	default:
		return protoreflect.ValueOfString("café \"x\"\n")
	}
}
