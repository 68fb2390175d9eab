package kservice_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

// TestConformanceTemplates compares the template of the Knative Services in cases/
// with the one that deploying their spec gives.
func TestConformanceTemplates(t *testing.T) {
	groups := []string{"container", "pod", "autoscaling", "security", "timeout"}
	checked, unreadable, unbuildable := 0, 0, 0
	dir := filepath.Join(corpus.Dir(repositoryRoot), "cases")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("read the corpus: %v", err)
	}
	for _, entry := range entries {
		var c struct {
			Name     string          `json:"name"`
			Group    string          `json:"group"`
			KService json.RawMessage `json:"kservice"`
		}
		if err := json.Unmarshal(corpus.ReadFile(t, filepath.Join(dir, entry.Name())), &c); err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		if !slices.Contains(groups, c.Group) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			want := serviceOf(t, c.KService)
			svc := decode[*kservice.Service](t, c.KService)
			id, err := kservice.ID(svc)
			if err != nil {
				t.Fatal(err)
			}
			app := &appv1.App{
				Metadata: &appv1.Meta{Id: &appv1.Identifier{
					Org: svc.Annotations[kservice.AnnotationOrg], Project: id.Project, Domain: id.Domain, Name: id.Name,
				}},
				Spec: specOf(t, want),
			}
			if app.GetSpec() == nil {
				unreadable++
				return
			}
			cfg := deployDefaults()
			cfg.Namespace = svc.Namespace
			spec, err := protojson.Marshal(app.GetSpec())
			if err != nil {
				t.Fatal(err)
			}
			cfg.Policy = corpus.DeployStep{RawApp: spec}.Names(t).Policy(t)
			m, err := build(id, app, cfg)
			if err != nil {
				// The corpus has another payload in the place of such a one.
				for problem := range strings.Lines(err.Error()) {
					if whyRefused(problem) == "" {
						t.Errorf("Build: %s", problem)
					}
				}
				t.Logf("not deployed: %v", err)
				unbuildable++
				return
			}
			flyte := &unstructured.Unstructured{}
			if err := flyte.UnmarshalJSON(c.KService); err != nil {
				t.Fatal(err)
			}
			checkAsKnative(t, m, app, cfg, flyte)
			got := serviceOf(t, deployedObject(t, m))
			for _, key := range []string{kservice.AnnotationAppID, kservice.AnnotationOrg, kservice.AnnotationSpec, kservice.AnnotationSpecSHA} {
				if got, want := got.Annotations[key], want.Annotations[key]; got != want {
					t.Errorf("annotation %s: got %q, want %q", key, got, want)
				}
			}
			withoutDefaults(&want.Spec.Template.Spec)
			if !equality.Semantic.DeepEqual(got.Spec.Template, want.Spec.Template) {
				t.Errorf("template: got, want: %s", cmp.Diff(got.Spec.Template, want.Spec.Template))
			}
			checked++
		})
	}
	t.Logf("conformance: templates: %d compared, %d without a spec, %d that cannot be deployed", checked, unreadable, unbuildable)
	if checked == 0 {
		t.Error("no template was compared")
	}
}

// withoutDefaults takes away what Knative's webhook fills in.
func withoutDefaults(spec *servingv1.RevisionSpec) {
	spec.ContainerConcurrency = nil
	for i := range spec.Containers {
		spec.Containers[i].ReadinessProbe = nil
	}
}
