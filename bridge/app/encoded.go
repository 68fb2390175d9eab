package app

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Encoded is an App as the bytes of one content type. Its zero value is no App. It is immutable, and
// shares its bytes with what it was made from.
//
// The App of a state is encoded once per version of its Knative Service, without the count of
// replicas, which a Revision gives. The count is the first field of the status, so the bytes come in
// two parts around it. What pods say comes last in a condition of the status: see slot.
type Encoded struct {
	form string
	data []byte
	// status is where the status begins in data if the count is not in there: in JSON behind its
	// brace, in binary form its fields without tag and length. 0: data is the whole App.
	status   int
	replicas uint32
	exact    bool // data is what encoding the App yields; what was read may be another form of it
	slot     slot
	said     appv1.Status_Substate // by the pods; unspecified without a slot
}

// EncodeApp encodes an App, in binary form if contentType is JSON and the App has no JSON form.
func EncodeApp(app *appv1.App, contentType string) (Encoded, error) {
	data, form, err := appv1.Encode(app, contentType)
	return Encoded{form: form, data: data, replicas: app.GetStatus().GetCurrentReplicas(), exact: true}, err
}

// ReadApp takes the bytes of an App from a message, if they can be decoded.
func ReadApp(data []byte, contentType string) (Encoded, error) {
	var app appv1.App
	if err := appv1.Decode(data, contentType, &app); err != nil {
		return Encoded{}, fmt.Errorf("decode app: %w", err)
	}
	// A copy: data may be a part of something larger.
	return Encoded{form: contentType, data: bytes.Clone(data), replicas: app.GetStatus().GetCurrentReplicas()}, nil
}

// statusJSON begins the status of an App in JSON. No key of this name follows in what a conversion
// yields, and in a string its quotes are escaped.
const statusJSON = `"status":{`

// encodeCountless encodes an App that was converted without its count. What JSON would lose is kept
// in binary form. speaks is the condition for what pods say, -1 for none.
func encodeCountless(app *appv1.App, contentType string, speaks int) (Encoded, error) {
	if contentType == subjects.ContentTypeJSON && !hasUnknown(app.GetSpec().ProtoReflect()) {
		e, err := EncodeApp(app, contentType)
		if err == nil && e.form == contentType {
			e.status = bytes.LastIndex(e.data, []byte(statusJSON)) + len(statusJSON)
			e.slot = slotJSON(e.data, e.status, speaks)
			return e, nil
		}
	}
	marshal := proto.MarshalOptions{Deterministic: true}
	head, err := marshal.Marshal(&appv1.App{Metadata: app.GetMetadata(), Spec: app.GetSpec()})
	if err != nil {
		return Encoded{}, fmt.Errorf("encode App: %w", err)
	}
	status, err := marshal.Marshal(app.GetStatus())
	if err != nil {
		return Encoded{}, fmt.Errorf("encode App: %w", err)
	}
	e := Encoded{form: subjects.ContentTypeProtobuf, data: slices.Concat(head, status), status: len(head), exact: true}
	e.slot = slotBinary(e.data, e.status, speaks)
	return e, nil
}

// hasUnknown reports whether a message has fields that are not known here.
func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				found = hasUnknown(v.Message())
				return !found
			})
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := 0; i < v.List().Len() && !found; i++ {
				found = hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// counting is the App with a count, if its own is not in its bytes.
func (e Encoded) counting(replicas uint32) Encoded {
	if e.status > 0 {
		e.replicas = replicas
	}
	return e
}

// IsZero reports whether there is no App.
func (e Encoded) IsZero() bool { return e.form == "" }

// Replicas is the App's count of replicas.
func (e Encoded) Replicas() uint32 { return e.replicas }

// ContentType is that of the bytes.
func (e Encoded) ContentType() string { return e.form }

// Bytes is the whole App. The caller must not change it.
func (e Encoded) Bytes() []byte {
	if e.status == 0 {
		return e.data
	}
	return e.appendTo(make([]byte, 0, e.size()))
}

// replicasNumber and statusNumber are the fields' numbers in Status and App.
const (
	replicasNumber = 2
	statusNumber   = 3
)

// count is the field current_replicas.
func (e Encoded) count(into []byte) []byte {
	switch {
	case e.replicas == 0:
		return into
	case e.form == subjects.ContentTypeJSON:
		into = append(into, `"currentReplicas":`...)
		return append(strconv.AppendUint(into, uint64(e.replicas), 10), ',')
	default:
		into = protowire.AppendTag(into, replicasNumber, protowire.VarintType)
		return protowire.AppendVarint(into, uint64(e.replicas))
	}
}

// middle is what belongs between the two parts of the bytes.
func (e Encoded) middle(into []byte) []byte {
	if e.status > 0 && e.form != subjects.ContentTypeJSON {
		var room [40]byte
		into = protowire.AppendTag(into, statusNumber, protowire.BytesType)
		into = protowire.AppendVarint(into, uint64(len(e.count(room[:0]))+len(e.data)-e.status+e.growth()))
	}
	if e.status > 0 {
		into = e.count(into)
	}
	return into
}

func (e Encoded) size() int {
	var room [40]byte
	return len(e.data) + len(e.middle(room[:0])) + e.growth()
}

func (e Encoded) appendTo(b []byte) []byte {
	b = e.middle(append(b, e.data[:e.status]...))
	if !e.speaks() {
		return append(b, e.data[e.status:]...)
	}
	b = append(b, e.data[e.status:e.slot.from]...)
	b = append(e.opening(b), e.data[e.slot.begin:e.slot.end]...)
	return append(e.closing(b), e.data[e.slot.end:]...)
}

// is reports whether data is the App.
func (e Encoded) is(data []byte) bool {
	if e.speaks() {
		return len(data) == e.size() && bytes.Equal(data, e.Bytes())
	}
	var room [40]byte
	head, found := bytes.CutPrefix(data, e.data[:e.status])
	tail, follows := bytes.CutPrefix(head, e.middle(room[:0]))
	return found && follows && bytes.Equal(tail, e.data[e.status:])
}

// shares reports whether two Apps have their bytes at one place.
func (e Encoded) shares(other Encoded) bool {
	return len(e.data) > 0 && len(e.data) == len(other.data) && &e.data[0] == &other.data[0]
}

// sameBytes reports whether two Apps have the same bytes of one content type. It may miss that of two
// that are both without their count.
func (e Encoded) sameBytes(other Encoded) bool {
	switch {
	case e.form != other.form:
		return false
	case e.status == 0:
		return other.is(e.data)
	case other.status == 0:
		return e.is(other.data)
	default:
		return e.status == other.status && e.replicas == other.replicas && e.said == other.said && bytes.Equal(e.data, other.data)
	}
}

// App decodes the App; nil if there is none.
func (e Encoded) App() (*appv1.App, error) {
	if e.IsZero() {
		return nil, nil
	}
	app := &appv1.App{}
	return app, appv1.Decode(e.Bytes(), e.form, app)
}

// As is the App in a content type as encoding it yields it: in binary form if it has no JSON form.
func (e Encoded) As(contentType string) (Encoded, error) {
	if e.IsZero() || e.exact && e.form == contentType {
		return e, nil
	}
	app, err := e.App()
	if err != nil {
		return Encoded{}, err
	}
	return EncodeApp(app, contentType)
}

// Without is the App without a field that may be truncated, "" for none.
func (e Encoded) Without(field string) (Encoded, error) {
	if field != subjects.TruncatedSpec && field != subjects.TruncatedStatus || e.IsZero() {
		return e, nil
	}
	app, err := e.App()
	if err != nil {
		return Encoded{}, err
	}
	if field == subjects.TruncatedSpec {
		app.Spec = nil
	} else {
		app.Status = nil
	}
	return EncodeApp(app, e.form)
}

// SameApp compares two Apps in the form one of them was published in: JSON keeps no unknown fields.
// Equal bytes of one content type are equal Apps; it decodes all others.
func SameApp(a, b Encoded, contentType string) bool {
	if a.sameBytes(b) {
		return true
	}
	var forms [2][]byte
	for i, e := range []Encoded{a, b} {
		app, err := e.App()
		if err != nil {
			return false
		}
		if forms[i], _, err = appv1.Encode(app, contentType); err != nil {
			return false
		}
	}
	return bytes.Equal(forms[0], forms[1])
}

// WeakerEncoding is the encoding in which two Apps can be compared: JSON keeps no unknown fields.
func WeakerEncoding(a, b string) string {
	if a == subjects.ContentTypeJSON || b == subjects.ContentTypeJSON {
		return subjects.ContentTypeJSON
	}
	return subjects.ContentTypeProtobuf
}

// Differences names the parts in which two Apps of the same version differ.
func Differences(encoded, other Encoded) string {
	a, errA := encoded.App()
	b, errB := other.App()
	if err := errors.Join(errA, errB); err != nil {
		return err.Error()
	}
	var parts []string
	note := func(part string, same bool) {
		if !same {
			parts = append(parts, part)
		}
	}
	x, y := a.GetStatus(), b.GetStatus()
	if m, n := x.GetCurrentReplicas(), y.GetCurrentReplicas(); m != n {
		parts = append(parts, fmt.Sprintf("replicas (%d, %d)", m, n))
	}
	if m, n := x.GetIngress().GetPublicUrl(), y.GetIngress().GetPublicUrl(); m != n {
		parts = append(parts, fmt.Sprintf("URL (%q, %q)", m, n))
	}
	note("metadata", proto.Equal(a.GetMetadata(), b.GetMetadata()))
	note("spec", proto.Equal(a.GetSpec(), b.GetSpec()))
	if x, y = proto.CloneOf(x), proto.CloneOf(y); x != nil && y != nil {
		x.CurrentReplicas, y.CurrentReplicas, x.Ingress, y.Ingress = 0, 0, nil, nil
		note("status", proto.Equal(x, y))
	} else {
		note("status", x == nil && y == nil)
	}
	if len(parts) == 0 {
		return "fields that are not known here"
	}
	return strings.Join(parts, ", ")
}
