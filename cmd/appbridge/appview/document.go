package appview

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"go.yaml.in/yaml/v3"
)

// The types of a Document.
const (
	TypeState   = "state" // an app of a snapshot; after a restart also one that is gone
	TypeMark    = "mark"  // the snapshot is complete; or, without one, the present is reached
	TypeEvent   = "event"
	TypeLoss    = "loss"    // events are lost
	TypeRestart = "restart" // a snapshot begins again: what is in no state up to the mark is gone
)

// Document is one line of JSON, or one document of YAML, for programs: an app, or a report on the
// stream. What is empty, false or zero is absent.
type Document struct {
	Type     string `json:"type"`
	Position string `json:"position,omitempty"` // to resume behind, once this document is processed
	Reason   string `json:"reason,omitempty"`   // of a loss or a restart: notice, removed, rolled-back, other-stream, bucket
	From     uint64 `json:"from,omitempty"`     // the range of sequences that it concerns
	To       uint64 `json:"to,omitempty"`

	*Fields
}

// Mark is the document of a mark.
type Mark struct {
	Type     string `json:"type"`
	Position string `json:"position"`
	Sequence uint64 `json:"sequence"`
}

// Fields are those of an app.
type Fields struct {
	Project          string             `json:"project"`
	Domain           string             `json:"domain"`
	App              string             `json:"app"`
	Kind             subjects.EventKind `json:"kind,omitempty"`
	Sequence         uint64             `json:"sequence,omitempty"` // of the event in the stream of origin
	ID               string             `json:"id,omitempty"`
	UID              string             `json:"uid,omitempty"`
	ResourceVersion  string             `json:"resourceVersion,omitempty"`
	Generation       uint64             `json:"generation,omitempty"`
	Revision         string             `json:"revision,omitempty"`
	Time             string             `json:"time,omitempty"`   // ce-time
	Stored           string             `json:"stored,omitempty"` // when the server stored the event
	Status           string             `json:"status,omitempty"`
	PreviousStatus   string             `json:"previousStatus,omitempty"`
	PodReason        subjects.Reason    `json:"podReason,omitempty"`         // what keeps pods from serving
	ReasonRevision   string             `json:"podReasonRevision,omitempty"` // whose pods have the reason
	PreviousSequence uint64             `json:"previousSequence,omitempty"`
	Merged           int                `json:"merged,omitempty"`
	Synthesized      bool               `json:"synthesized,omitempty"`
	FinalUnknown     bool               `json:"finalStateUnknown,omitempty"`
	Truncated        []string           `json:"truncated,omitempty"`
	Skipped          int                `json:"skipped,omitempty"` // events that this one stands in for
	Changed          bool               `json:"changed,omitempty"` // after a restart: differs from what was printed
	Object           json.RawMessage    `json:"object,omitempty"`  // the App as protobuf JSON
	Old              json.RawMessage    `json:"old,omitempty"`     // the App before, of an update

	// An App that protobuf JSON cannot express (a NaN, a duration out of range) is here instead: as
	// binary protobuf, in base64.
	ObjectProtobuf []byte `json:"objectProtobuf,omitempty"`
	OldProtobuf    []byte `json:"oldProtobuf,omitempty"`
}

// List is the document of a whole table.
type List struct {
	Position string    `json:"position,omitempty"`
	At       string    `json:"at,omitempty"` // the instant, if it is not the present
	Apps     []*Fields `json:"apps"`
}

// FieldsOf are the fields of an app. They decode and encode its App, and that before.
func FieldsOf(a *App) *Fields {
	f := &Fields{
		Project: a.ID.Project, Domain: a.ID.Domain, App: a.ID.Name, Kind: a.Kind, Sequence: a.Sequence,
		ID: a.MessageID, UID: a.UID, ResourceVersion: a.ResourceVersion, Generation: a.Generation, Revision: a.Revision,
		Time: instant(a.Time), Stored: instant(a.Stored), Status: a.Status, PreviousStatus: a.PreviousStatus, PodReason: a.PodReason, ReasonRevision: a.ReasonRevision,
		PreviousSequence: a.PreviousSequence, Merged: a.Merged, Synthesized: a.Synthesized, FinalUnknown: a.FinalUnknown, Truncated: a.Truncated, Skipped: a.Skipped, Changed: a.Differs,
	}
	f.Object, f.ObjectProtobuf = object(decode(a.Body))
	f.Old, f.OldProtobuf = object(decode(a.Old))
	return f
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// object is an App as protobuf JSON without its spacing, which is random, or in binary if it cannot
// be JSON. Both are nil without an App.
func object(app *appv1.App) (text json.RawMessage, binary []byte) {
	if app == nil {
		return nil, nil
	}
	data, form, err := appv1.Encode(app, subjects.ContentTypeJSON)
	switch {
	case err != nil:
		return nil, nil // not UTF-8: no message that was decoded is so
	case form == subjects.ContentTypeJSON:
		return data, nil
	default:
		return nil, data
	}
}

// JSON is a document on one line. What a terminal could obey is escaped: between quotes alone can a
// document of JSON have such characters, so it stays the same document.
func JSON(document any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return nil, err
	}
	return escapeUnsafe(out.Bytes(), jsonEscape), nil
}

// escapeUnsafe writes unsafe characters as \u, which is the same in JSON and in double quotes in
// YAML. For characters beyond four digits, form has the escape.
func escapeUnsafe(text []byte, form func(out []byte, r rune) []byte) []byte {
	if !bytes.ContainsFunc(text, unsafeInText) {
		return text
	}
	out := make([]byte, 0, len(text)+16)
	for _, r := range string(text) {
		switch {
		case !unsafeInText(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			out = form(out, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

func jsonEscape(out []byte, r rune) []byte {
	high, low := utf16.EncodeRune(r)
	return fmt.Appendf(out, `\u%04x\u%04x`, high, low)
}

func yamlEscape(out []byte, r rune) []byte { return fmt.Appendf(out, `\U%08x`, r) }

func unsafeInText(r rune) bool { return r != '\n' && Unsafe(r) }

// YAML is a document after the mark that separates it from the one before, with the keys of JSON in
// their order.
func YAML(document any) ([]byte, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(escapeUnsafe(text, yamlEscape), &node); err != nil {
		return nil, err
	}
	plainStyle(&node)
	var out bytes.Buffer
	out.WriteString("---\n")
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return nil, err
	}
	return escapeUnsafe(out.Bytes(), yamlEscape), encoder.Close()
}

// plainStyle turns the flow style of JSON into that of blocks. A text with unsafe characters stays
// in double quotes, where they can be escaped, and so does one that YAML 1.1 reads as something else.
func plainStyle(node *yaml.Node) {
	node.Style = 0
	if node.Kind == yaml.ScalarNode && (slices.ContainsFunc([]rune(node.Value), unsafeInText) || node.ShortTag() == "!!str" && otherInYAML11(node.Value)) {
		node.Style = yaml.DoubleQuotedStyle
	}
	for _, below := range node.Content {
		plainStyle(below)
	}
}

// otherInYAML11 finds texts that are booleans, numbers, default values or merge keys in YAML 1.1, the
// version of PyYAML and Ansible. The encoder quotes what is no text in YAML 1.2.
var otherInYAML11 = regexp.MustCompile(`^([-+.]?[0-9].*|(?i:y|n|yes|no|on|off)|=|<<)$`).MatchString

// Name is an app as -o name prints it: project/domain/name, escaped.
func Name(a *App) string { return Safe(a.ID.String()) }
