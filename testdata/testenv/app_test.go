package testenv_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// What Service builds is what Flyte's deploy builds, as far as App can express it.
func TestServiceIsWhatDeployWrites(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "conformance", "deploy.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name  string
		Steps []struct {
			Op     string
			App    json.RawMessage
			Expect struct{ KService *servingv1.Service }
		}
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			step := tc.Steps[0]
			if step.Op != "deploy" || step.Expect.KService == nil {
				return
			}
			app := &appv1.App{}
			if err := protojson.Unmarshal(step.App, app); err != nil {
				t.Fatal(err)
			}
			if app.GetSpec().GetContainer() == nil || app.GetSpec().GetSecurityContext() != nil || app.GetSpec().GetTimeouts() != nil {
				return // beyond what App offers
			}
			id := app.GetMetadata().GetId()
			got := testenv.App{
				Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName(), Org: id.GetOrg(),
				Spec: app.GetSpec(),
			}.Service()
			want := step.Expect.KService
			compared++
			if got.Name != want.Name || got.Namespace != want.Namespace {
				t.Errorf("name = %s/%s, want %s/%s", got.Namespace, got.Name, want.Namespace, want.Name)
			}
			if !reflect.DeepEqual(got.Labels, want.Labels) {
				t.Errorf("labels = %v, want %v", got.Labels, want.Labels)
			}
			if !reflect.DeepEqual(got.Annotations, want.Annotations) {
				t.Errorf("annotations = %v, want %v", got.Annotations, want.Annotations)
			}
			gotSpec, wantSpec := asJSON(t, got.Spec), asJSON(t, want.Spec)
			if gotSpec != wantSpec {
				t.Errorf("spec = %s\nwant %s", gotSpec, wantSpec)
			}
		})
	}
	if compared == 0 {
		t.Error("no case was compared")
	}
	t.Logf("%d of %d cases compared", compared, len(cases))
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestServiceOfOddIDs(t *testing.T) {
	t.Parallel()
	c := shared.Get(t)
	ns := namespace(t, c)
	service := must[*servingv1.Service](t)
	for _, tc := range []struct {
		name       string
		app        testenv.App
		wantID     string
		wantLabels int
	}{
		{
			name:       "dots stars and spaces",
			app:        testenv.App{Project: "a.b", Domain: "*", Name: "x >y", ObjectName: "odd-1"},
			wantID:     "a.b/*/x >y",
			wantLabels: 2, // managed and the project, which is a legal label
		},
		{
			name:       "unicode and an empty domain",
			app:        testenv.App{Project: "größe", Name: "日本", ObjectName: "odd-2"},
			wantID:     "größe//日本",
			wantLabels: 2, // managed and the domain: an empty value is legal
		},
		{
			name: "a label taken away",
			app: testenv.App{
				Project: "p", Domain: "d", Name: "n",
				Labels: map[string]string{"flyte.org/app-managed": "", "extra": "1"},
			},
			wantID:     "p/d/n",
			wantLabels: 4,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.app.Namespace = ns
			svc := service(c.Create(t.Context(), tc.app))
			if got, want := svc.Annotations["flyte.org/app-id"], tc.wantID; got != want {
				t.Errorf("id = %q, want %q", got, want)
			}
			if got, want := len(svc.Labels), tc.wantLabels; got != want {
				t.Errorf("labels = %v, want %d", svc.Labels, want)
			}
		})
	}
}
