// Package contract describes the contract to programs: it generates the JSON Schema of the payloads
// from their protobuf descriptors. Its tests compare that schema, docs/asyncapi.yaml and the
// CloudEvents SDK with package subjects and with messages.
//
//	subjects/appv1/*.proto ──► buf, protoc-gen-contract ──► docs/schema/appbridge.v1.json
//	package subjects ◄── compare ──► docs/asyncapi.yaml ──► refers to the schema
//
// It is a module of its own: consumers of package subjects need none of what validates it.
package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/appbridge/appbridge/subjects"
)

// File is the name of the schema: that of the protobuf package.
const File = string(pkg) + ".json"

const pkg protoreflect.FullName = "appbridge.v1"

// dialect is the version of JSON Schema.
const dialect = "https://json-schema.org/draft/2020-12/schema"

// exactlyOne are the oneofs that always have a member; of the others there may be none.
var exactlyOne = map[protoreflect.FullName]bool{pkg + ".WatchResponse.event": true}

// object is a JSON object: a schema or a part of one.
type object map[string]any

// Schema returns the JSON Schema of all messages of the files, in the JSON form in which they are
// published: names of fields in lowerCamelCase, 64-bit numbers as text, enumerations by name. It
// accepts what a compatible later version may add: fields, and values of enumerations.
func Schema(files []protoreflect.FileDescriptor) ([]byte, error) {
	g := generator{defs: object{}}
	for _, file := range files {
		g.messages(file.Messages())
		g.enums(file.Enums())
	}
	if g.err != nil {
		return nil, g.err
	}
	kinds := []any{}
	for _, name := range []string{"createEvent", "updateEvent", "deleteEvent"} {
		kinds = append(kinds, required(name))
	}
	root := object{
		"$schema":     dialect,
		"$id":         subjects.DataSchema,
		"title":       "Payloads of appbridge",
		"description": "The WatchResponse of an event, or the App of a bucket entry, as protobuf JSON.",
		"if":          object{"type": "object", "anyOf": kinds},
		"then":        reference("WatchResponse"),
		"else":        object{"$ref": reference("App")["$ref"], "required": []string{"metadata"}},
		"$defs":       g.defs,
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("encode the schema: %w", err)
	}
	return out.Bytes(), nil
}

// generator collects the definitions of messages and enumerations.
type generator struct {
	defs object
	err  error
}

func (g *generator) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		if m := all.Get(i); !m.IsMapEntry() {
			g.defs[name(m)] = g.message(m)
			g.messages(m.Messages())
			g.enums(m.Enums())
		}
	}
}

func (g *generator) message(m protoreflect.MessageDescriptor) object {
	properties := object{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		properties[f.JSONName()] = described(f, g.field(f))
	}
	def := described(m, object{"title": name(m), "type": "object", "properties": properties})
	rules := []any{}
	for i := range m.Oneofs().Len() {
		if o := m.Oneofs().Get(i); !o.IsSynthetic() {
			rules = append(rules, oneof(o))
		}
	}
	if len(rules) > 0 {
		def["allOf"] = rules
	}
	return def
}

// oneof allows one member, or none.
func oneof(o protoreflect.OneofDescriptor) object {
	members := []any{}
	for i := range o.Fields().Len() {
		members = append(members, required(o.Fields().Get(i).JSONName()))
	}
	if exactlyOne[o.FullName()] {
		return object{"oneOf": members}
	}
	return object{"oneOf": append(members, object{"not": object{"anyOf": members}})}
}

func (g *generator) field(f protoreflect.FieldDescriptor) object {
	switch {
	case f.IsMap():
		return object{"type": "object", "additionalProperties": g.value(f.MapValue())}
	case f.IsList():
		return object{"type": "array", "items": g.value(f)}
	default:
		return g.value(f)
	}
}

// value is the schema of one value of a field.
func (g *generator) value(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return object{"type": "integer", "minimum": -1 << 31, "maximum": 1<<31 - 1}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return object{"type": "integer", "minimum": 0, "maximum": 1<<32 - 1}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return object{"type": "string", "pattern": "^-?(0|[1-9][0-9]{0,18})$"}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": "string", "pattern": "^(0|[1-9][0-9]{0,19})$"}
	case protoreflect.EnumKind:
		return reference(name(f.Enum()))
	case protoreflect.MessageKind:
		if f.Message().FullName().Parent() != "google.protobuf" {
			return reference(name(f.Message()))
		}
		if known, ok := wellKnown[f.Message().FullName()]; ok {
			return known
		}
	}
	if g.err == nil {
		g.err = fmt.Errorf("field %s: no JSON Schema for its type", f.FullName())
	}
	return object{}
}

// wellKnown are the messages that have a JSON form of their own.
var wellKnown = map[protoreflect.FullName]object{
	"google.protobuf.Timestamp": {
		"type": "string", "format": "date-time",
		"pattern": `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3}|\.[0-9]{6}|\.[0-9]{9})?Z$`,
	},
	"google.protobuf.Duration": {"type": "string", "pattern": `^-?[0-9]+(\.[0-9]{3}|\.[0-9]{6}|\.[0-9]{9})?s$`},
	"google.protobuf.Struct":   {"type": "object"},
}

// enums defines enumerations: a known name, a name of a later version, or the number of a value that
// the writer did not know.
func (g *generator) enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		e := all.Get(i)
		names := []string{}
		for j := range e.Values().Len() {
			names = append(names, string(e.Values().Get(j).Name()))
		}
		g.defs[name(e)] = described(e, object{"title": name(e), "anyOf": []any{
			object{"enum": names},
			object{"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"},
			object{"type": "integer", "minimum": -1 << 31, "maximum": 1<<31 - 1},
		}})
	}
}

// name is that of a message or an enumeration inside the package, "Status.Substate".
func name(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), string(pkg)+".")
}

func reference(name string) object { return object{"$ref": "#/$defs/" + name} }

func required(name string) object { return object{"required": []string{name}} }

// described adds the comment of the .proto file to a schema, where the descriptor has it.
func described(d protoreflect.Descriptor, schema object) object {
	comment := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	words := strings.Join(strings.Fields(comment), " ")
	if words == "" {
		return schema
	}
	out := object{"description": words}
	for k, v := range schema {
		out[k] = v
	}
	return out
}
