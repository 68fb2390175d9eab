package kservice_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

// nowMark stands in the corpus where Flyte puts the time of conversion.
const nowMark = `"<now>"`

type appCase struct {
	Name      string            `json:"name"`
	Config    corpus.Config     `json:"config"`
	KService  json.RawMessage   `json:"kservice"`
	Revisions []json.RawMessage `json:"revisions"`
	Expect    corpus.Strict[struct {
		App          json.RawMessage `json:"app"`
		AppProto     string          `json:"appProtoBase64"`
		Error        string          `json:"error"`
		AppJSONError string          `json:"appJsonError"`
	}] `json:"expect"`
}

func runCases(t *testing.T, dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("read the corpus: %v", err)
	}
	for _, entry := range entries {
		if entry.IsDir() || filepath.Ext(entry.Name()) != ".json" {
			t.Errorf("%s: not a file that this test knows", filepath.Join(dir, entry.Name()))
			continue
		}
		t.Run(strings.TrimSuffix(entry.Name(), ".json"), func(t *testing.T) {
			var c appCase
			if err := json.Unmarshal(corpus.ReadFile(t, filepath.Join(dir, entry.Name())), &c); err != nil {
				t.Fatal(err)
			}
			checkAppCase(t, c)
		})
	}
	return len(entries)
}

func checkAppCase(t *testing.T, c appCase) {
	t.Helper()
	svc := decode[*kservice.Service](t, c.KService)
	rev := latestReady(svc, decodeAll[*kservice.Revision](t, c.Revisions))
	svcBefore, revBefore := svc.DeepCopy(), rev.DeepCopy()

	got, err := kservice.Convert(svc, rev, c.Config.KService())

	if !reflect.DeepEqual(svc, svcBefore) || !reflect.DeepEqual(rev, revBefore) {
		t.Error("Convert changed its input")
	}
	want := c.Expect.Value
	if want.Error != "" {
		if err == nil || got != nil {
			t.Fatalf("got app %v and error %v, want an error alone, like: %s", got, err, want.Error)
		}
		return
	}
	if err != nil {
		t.Fatalf("Convert: %v", err)
	}
	if want.AppJSONError != "" {
		if out, err := protojson.Marshal(got); err == nil {
			t.Errorf("got the JSON form %s, want an error, like: %s", out, want.AppJSONError)
		}
	} else {
		checkJSON(t, got, &appv1.App{}, want.App, c.KService)
	}
	checkBinary(t, got, &appv1.App{}, want.AppProto, hasNow(want.App))

	checkStatusWord(t, svc, c.KService, got)

	trimmed, err := kservice.Trim(svc.DeepCopy())
	if err != nil {
		t.Fatalf("Trim: %v", err)
	}
	if got, want := kservice.StatusWord(trimmed.(*kservice.Service)), kservice.StatusWord(svc); got != want {
		t.Errorf("status word after Trim: got %q, want %q", got, want)
	}
	again, err := kservice.Convert(trimmed.(*kservice.Service), rev, c.Config.KService())
	if err != nil {
		t.Fatalf("Convert after Trim: %v", err)
	}
	if !proto.Equal(again, got) {
		t.Errorf("after Trim:\n got %v\nwant %v", again, got)
	}
}

func hasNow(expected []byte) bool {
	return bytes.Contains(expected, []byte(nowMark))
}

// checkJSON compares a message with its JSON form in the corpus, both ways: as
// messages and as JSON. svc is the object that the message was made from.
func checkJSON(t *testing.T, got, empty proto.Message, expected, svc []byte) {
	t.Helper()
	if len(expected) == 0 {
		t.Fatal("the case has no expected JSON form")
	}
	expected = replaceNow(t, expected, svc)

	want := empty
	if err := protojson.Unmarshal(expected, want); err != nil {
		t.Fatalf("read the expected JSON form: %v", err)
	}
	if known := withoutUnknown(t, got); !proto.Equal(known, want) {
		t.Errorf("as message:\n got %v\nwant %v", known, want)
	}
	marshalled, err := protojson.Marshal(got)
	if err != nil {
		t.Fatalf("marshal as JSON: %v", err)
	}
	if g, w := generic(t, marshalled), generic(t, expected); !reflect.DeepEqual(g, w) {
		t.Errorf("as JSON:\n got %s\nwant %s", marshalled, expected)
	}
}

// checkBinary compares a message with its binary form in the corpus, unknown
// fields included.
func checkBinary(t *testing.T, got, empty proto.Message, expected string, now bool) {
	t.Helper()
	if expected == "" {
		if !now {
			t.Error("the case has neither a binary form nor a time that would make one impossible")
		}
		return
	}
	wire, err := base64.StdEncoding.DecodeString(expected)
	if err != nil {
		t.Fatal(err)
	}
	want := empty
	if err := proto.Unmarshal(wire, want); err != nil {
		t.Fatalf("read the expected binary form: %v", err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("as binary:\n got %v\nwant %v", got, want)
	}
}

// withoutUnknown is the message as its JSON form can carry it.
func withoutUnknown(t *testing.T, m proto.Message) proto.Message {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface()
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(wire, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func generic(t *testing.T, data []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var out any
	if err := dec.Decode(&out); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return out
}

// replaceNow puts the time that stands for Flyte's clock in the place of the
// mark. It works on JSON alone, so that it does not repeat what it checks.
func replaceNow(t *testing.T, expected, svc []byte) []byte {
	t.Helper()
	if !hasNow(expected) {
		return expected
	}
	at := objectTime(t, svc)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for key, value := range v {
				switch {
				case value != "<now>":
					walk(value)
				case at.IsZero():
					delete(v, key)
				default:
					v[key] = timestampJSON(t, at)
				}
			}
		}
	}
	tree := generic(t, expected)
	walk(tree)
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// objectTime is the transition time of the Ready condition, else the creation
// time, else zero.
func objectTime(t *testing.T, svc []byte) time.Time {
	t.Helper()
	var obj struct {
		Metadata struct{ CreationTimestamp string }
		Status   struct {
			Conditions []struct{ Type, LastTransitionTime string }
		}
	}
	if err := json.Unmarshal(svc, &obj); err != nil {
		t.Fatal(err)
	}
	parse := func(written string) time.Time {
		at, err := time.Parse(time.RFC3339, written)
		if err != nil && written != "" {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range obj.Status.Conditions {
		if c.Type != "Ready" {
			continue
		}
		if at := parse(c.LastTransitionTime); !at.IsZero() {
			return at
		}
		break
	}
	return parse(obj.Metadata.CreationTimestamp)
}

func timestampJSON(t *testing.T, at time.Time) string {
	t.Helper()
	data, err := protojson.Marshal(timestamppb.New(at))
	if err != nil {
		t.Fatal(err)
	}
	var out string
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
