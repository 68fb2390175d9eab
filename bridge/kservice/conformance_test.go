package kservice_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

const repositoryRoot = "../.."

// TestConformance runs every case of the corpus. A file that it does not know
// fails it, so that a grown corpus cannot go unnoticed.
func TestConformance(t *testing.T) {
	dir := corpus.Dir(repositoryRoot)

	checks := map[string]func(t *testing.T, path string) int{
		"cases":          runCases,
		"names.json":     runNames,
		"podstatus.json": runPodStatus,
		"replicas.json":  runReplicas,
		"events.json":    runEvents,
		"schema.json":    runSchema,
		"deploy.json":    runDeploy,
	}
	// Package appsvc runs the cases of list.json, package logline those of log lines and streams.
	others := map[string]bool{"README.md": true, "RULES.md": true, "list.json": true, "loglines.json": true, "logstreams.json": true}
	required := []string{"cases", "names.json", "podstatus.json", "replicas.json", "list.json", "events.json"}

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("read the corpus: %v", err)
	}
	present := map[string]bool{}
	for _, entry := range entries {
		present[entry.Name()] = true
		if others[entry.Name()] {
			continue
		}
		check, ok := checks[entry.Name()]
		if !ok {
			t.Errorf("%s: not a file that this test knows", filepath.Join(dir, entry.Name()))
			continue
		}
		t.Run(strings.TrimSuffix(entry.Name(), ".json"), func(t *testing.T) {
			cases := check(t, filepath.Join(dir, entry.Name()))
			if cases == 0 {
				t.Errorf("%s is empty", entry.Name())
			}
			t.Logf("conformance: %s: %d cases", entry.Name(), cases)
		})
	}
	for _, name := range required {
		if !present[name] {
			t.Errorf("%s: missing from %s", name, dir)
		}
	}
}

// decoder decodes objects as client-go does for an informer.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}

func decode[T runtime.Object](t *testing.T, raw []byte) T {
	t.Helper()
	obj, _, err := decoder(t).Decode(raw, nil, nil)
	if err != nil {
		t.Fatalf("decode: %v\n%s", err, raw)
	}
	out, ok := obj.(T)
	if !ok {
		t.Fatalf("decoded a %T, want %T", obj, out)
	}
	return out
}

func decodeAll[T runtime.Object](t *testing.T, raws []json.RawMessage) []T {
	t.Helper()
	out := make([]T, len(raws))
	for i, raw := range raws {
		out[i] = decode[T](t, raw)
	}
	return out
}

// latestReady is the Revision that a Service names, nil when there is none.
func latestReady(svc *kservice.Service, revisions []*kservice.Revision) *kservice.Revision {
	for _, rev := range revisions {
		if rev.Namespace == svc.Namespace && rev.Name == svc.Status.LatestReadyRevisionName {
			return rev
		}
	}
	return nil
}
