package kservice_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func FuzzAppIDAnnotation(f *testing.F) {
	for _, seed := range []string{
		"p/d/n", "//", "/", "", "p/d/n/more", "P/D/" + strings.Repeat("é", 80), "a.b/*/>", "p/d/\x00", "İ/ſ/K",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, written string) {
		svc := sampleService()
		svc.Annotations[kservice.AnnotationAppID] = written
		app, err := kservice.Convert(svc, nil, sampleConfig())
		if good := strings.Count(written, "/") >= 2; good != (err == nil) || good != (app != nil) {
			t.Fatalf("got %v, %v, want an app: %v", app, err, good)
		}
		id, idErr := kservice.ID(svc)
		if err != nil {
			if !errors.Is(err, kservice.ErrMalformedAppID) || !errors.Is(idErr, kservice.ErrMalformedAppID) {
				t.Fatalf("got %v and %v, want both to be %v", err, idErr, kservice.ErrMalformedAppID)
			}
			return
		}
		if got := id.String(); got != written {
			t.Errorf("id: got %q, want %q", got, written)
		}
		if name := kservice.Name(id); len(name) > 63 {
			t.Errorf("name: got %d bytes, want at most 63", len(name))
		}
		if url := kservice.PublicURL(id, sampleConfig()); !utf8.ValidString(url) {
			t.Errorf("public URL: got %q, want UTF-8", url)
		}
		if !utf8.ValidString(written) {
			return // no object read from an API server has such an annotation
		}
		wire, err := proto.Marshal(app)
		if err != nil {
			t.Fatalf("marshal: %v", err)
		}
		var back appv1.App
		if err := proto.Unmarshal(wire, &back); err != nil || !proto.Equal(&back, app) {
			t.Errorf("round trip: got %v, %v, want %v", &back, err, app)
		}
	})
}

func FuzzSpecAnnotation(f *testing.F) {
	for _, seed := range []string{
		"", "CggKAWk6AwiQPw==", "Cg gK", "CggKAWk6\r\nAwiQPw==", "CggKAWk6AwiQPw", "!!", "AAAA", "/////w==",
		"EhISEAoOCgF4EgkRAQAAAAAA+H8=",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, written string) {
		svc := sampleService()
		svc.Annotations[kservice.AnnotationSpec] = written
		app, err := kservice.Convert(svc, nil, sampleConfig())
		if err != nil {
			t.Fatalf("got %v, want an app whatever the spec", err)
		}
		stored := new(appv1.Spec)
		wire, err := base64.StdEncoding.DecodeString(written)
		if err == nil {
			err = proto.Unmarshal(wire, stored)
		}
		if err != nil {
			stored = nil
		}
		if (app.Spec != nil) != (stored != nil) || !proto.Equal(app.GetSpec(), stored) {
			t.Fatalf("got %v, want %v", app.GetSpec(), stored)
		}
		if _, err := proto.Marshal(app); err != nil {
			t.Fatalf("marshal: %v", err)
		}
		svc.Labels[kservice.LabelStopped] = "true"
		if app, err = kservice.Convert(svc, nil, sampleConfig()); err != nil {
			t.Fatal(err)
		}
		if stored != nil {
			stored.DesiredState = appv1.Spec_DESIRED_STATE_STOPPED
		}
		if !proto.Equal(app.GetSpec(), stored) {
			t.Fatalf("stopped: got %v, want %v", app.GetSpec(), stored)
		}
	})
}

func FuzzStatusDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `"x"`, `{"conditions":[{"type":"Ready","lastTransitionTime":"2026-01-02T03:04:05Z"}]}`,
		`{"conditions":[{"type":1,"lastTransitionTime":"\u0000"}],"latestReadyRevisionName":[]}`,
		`{"actualReplicas":1}`, `{"actualReplicas":99999999999}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) {
			return
		}
		var status kservice.ServiceStatus
		if err := json.Unmarshal(data, &status); err != nil {
			t.Errorf("service status: got %v, want none for valid JSON", err)
		}
		var revision kservice.RevisionStatus
		if err := json.Unmarshal(data, &revision); err != nil {
			t.Errorf("revision status: got %v, want none for valid JSON", err)
		}
		svc := sampleService()
		svc.Status = status
		before := svc.DeepCopy()
		app, err := kservice.Convert(svc, nil, sampleConfig())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := proto.Marshal(app); err != nil {
			t.Errorf("marshal: %v", err)
		}
		if !reflect.DeepEqual(svc, before) {
			t.Error("Convert changed its input")
		}
	})
}
