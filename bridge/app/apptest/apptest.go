// Package apptest has the app that the tests of package bridge and its parts use, and their golden
// files.
package apptest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// ID is the app of Service.
var ID = subjects.AppID{Project: "vision", Domain: "development", Name: "stream.lit"}

// Service returns a version of a Knative Service; status is that of its Ready condition.
func Service(uid, version, status string) *kservice.Service {
	created := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return &kservice.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "stream.lit-vision-development", Namespace: "flyte", UID: types.UID(uid), ResourceVersion: version, Generation: 3,
			CreationTimestamp: created,
			Labels:            map[string]string{kservice.LabelManaged: "true"},
			Annotations: map[string]string{
				kservice.AnnotationAppID: "vision/development/stream.lit",
				kservice.AnnotationOrg:   "acme",
				kservice.AnnotationSpec:  "Ch8KGGdoY3IuaW8vYWNtZS9oZWxsbzoxLjQuMjoDCJA/",
			},
		},
		Status: kservice.ServiceStatus{
			LatestReadyRevisionName: "rev-1",
			Conditions: []kservice.Condition{{
				Type: "Ready", Status: status, Reason: "Because", Message: "of that",
				LastTransitionTime: kservice.Time{Time: created.Add(90 * time.Second)},
			}},
		},
	}
}

// Revision returns a version of the Revision that Service names.
func Revision(version string, replicas int32) *kservice.Revision {
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Name: "rev-1", Namespace: "flyte", ResourceVersion: version},
		Status:     kservice.RevisionStatus{ActualReplicas: &replicas},
	}
}

// Render returns a message as the golden files have it.
func Render(m *nats.Msg) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, m.Subject)
	names := make([]string, 0, len(m.Header))
	for name := range m.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(m.Header[name], " | "))
	}
	fmt.Fprintf(&b, "\n%s\n", m.Data)
	return b.Bytes()
}

// Update is set by -update.
var Update = flag.Bool("update", false, "write the golden files again")

// Golden compares got with a file of testdata/golden at the root of the module, or writes it with
// -update.
func Golden(t *testing.T, name string, got []byte) {
	t.Helper()
	dir := "."
	for _, err := os.Stat("go.mod"); err != nil; _, err = os.Stat(filepath.Join(dir, "go.mod")) {
		if dir = filepath.Join(dir, ".."); len(dir) > 30 {
			t.Fatal("the root of the module is not found")
		}
	}
	file := filepath.Join(dir, "testdata", "golden", name)
	if *Update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
