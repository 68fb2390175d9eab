package appv1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
)

// room is what a message is encoded in before its size is known.
type room struct {
	spaced  []byte
	compact bytes.Buffer
}

var rooms = sync.Pool{New: func() any { return &room{} }}

// Encode writes m in the form that contentType asks for, the same bytes for the same message
// always, and returns the form that it has: a message that protobuf JSON cannot express (a NaN in a
// Struct, a duration out of range) comes out binary, since leaving it out would lose it.
func Encode(m proto.Message, contentType string) (data []byte, got string, err error) {
	if contentType == subjects.ContentTypeJSON {
		r := rooms.Get().(*room)
		defer rooms.Put(r)
		r.compact.Reset()
		if r.spaced, err = (protojson.MarshalOptions{}).MarshalAppend(r.spaced[:0], m); err == nil {
			// protojson varies its spacing from build to build on purpose.
			if err := json.Compact(&r.compact, r.spaced); err != nil {
				return nil, "", fmt.Errorf("compact protobuf JSON: %w", err)
			}
			return bytes.Clone(r.compact.Bytes()), subjects.ContentTypeJSON, nil
		}
	}
	data, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return data, subjects.ContentTypeProtobuf, nil
}

// Decode reads data of the given content type into m. Unknown JSON fields are
// passed over: a newer writer may have written them.
func Decode(data []byte, contentType string, m proto.Message) error {
	switch contentType {
	case subjects.ContentTypeJSON:
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
	case subjects.ContentTypeProtobuf:
		return proto.Unmarshal(data, m)
	default:
		return fmt.Errorf("unknown content type %q", contentType)
	}
}
