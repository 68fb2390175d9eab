package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// A bridge whose writes are not turned on refuses every one of them and changes
// nothing in Kubernetes; and what it can be asked, it answers from memory.
func TestWritesOff(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, testenv.Options{Audit: true}, "", "--base-domain", "apps.example.com", "--audit-interval", "0")
	app := testenv.App{Project: "shop", Domain: "production", Name: "quiet"}
	svc, err := w.Create(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Kubelet.RunPod(t.Context(), testenv.PodOptions{Name: "quiet-1", Service: svc.Name}); err != nil {
		t.Fatal(err)
	}
	nc := w.connect(t)
	reads := []string{names(t).APIListFilters()[0]}
	for _, op := range []subjects.APIOp{subjects.APIGet, subjects.APIReplicas, subjects.APIIngress} {
		reads = append(reads, subjectOf(t, op, app.ID()))
	}
	for _, subject := range reads {
		eventually(t, subject+" shows the app", func() error {
			a, err := asks(t.Context(), nc, subject, "")
			if err != nil || !strings.Contains(a.body, "quiet") {
				return fmt.Errorf("got %q, %w", a.body, err)
			}
			return nil
		})
	}

	for op, body := range map[subjects.APIOp]string{
		subjects.APIDeploy:        `{"app": {"spec": {"container": {"image": "registry.example.com/quiet:2", "ports": [{"containerPort": 8080}]}}}}`,
		subjects.APIStop:          "",
		subjects.APIDelete:        "",
		subjects.APIDeleteReplica: `{"name": "quiet-1"}`,
	} {
		a := w.types(t, subjectOf(t, op, app.ID()), body)
		if got := a.refused(); !strings.HasPrefix(got, subjects.CodePermissionDenied.HeaderValue()+" "+string(op)) || !strings.Contains(got, "--enable-writes") {
			t.Errorf("%s: got %q", op, got)
		}
		if !strings.Contains(a.body, "--enable-writes") {
			t.Errorf("%s: the body is %q", op, a.body)
		}
	}

	before := w.quiet(t)
	for i := range 1000 {
		a, err := asks(t.Context(), nc, reads[i%len(reads)], "")
		if err != nil {
			t.Fatal(err)
		}
		if a.refused() != "" || !strings.Contains(a.body, "quiet") {
			t.Fatalf("%s: got %q, %s", reads[i%len(reads)], a.body, a.refused())
		}
	}
	after := w.kubernetesHeard(t)
	for _, request := range after[len(before):] {
		// Now and then watches begin again, rights are checked, and the cluster's version is read.
		verb, what, _ := strings.Cut(request, " ")
		version := verb == "list" && strings.HasSuffix(what, "/services?limit=1")
		if verb != "watch" && !version && !strings.HasPrefix(what, "/apis/authorization.k8s.io/") {
			t.Errorf("while the bridge was read, Kubernetes was asked: %s", request)
		}
	}
	if len(after) < 3 {
		t.Errorf("Kubernetes has heard of the bridge %d times: this test tests nothing", len(after))
	}
	for _, request := range after {
		verb, what, _ := strings.Cut(request, " ")
		// To ask what one may do is a request of this verb, which changes nothing.
		if !slices.Contains([]string{"get", "list", "watch"}, verb) && !strings.HasPrefix(what, "/apis/authorization.k8s.io/") {
			t.Errorf("the bridge did %s", request)
		}
	}
}

// kubernetesHeard are the requests of bridges at the API server.
func (w *world) kubernetesHeard(t *testing.T) []string {
	t.Helper()
	all, err := w.Audit()
	if err != nil {
		t.Fatal(err)
	}
	var heard []string
	for _, request := range all {
		if strings.HasPrefix(request.UserAgent, "appbridge/") {
			heard = append(heard, request.Verb+" "+request.RequestURI)
		}
	}
	return heard
}

// quiet waits until bridges ask Kubernetes nothing more: what they have to do at
// their start is done.
func (w *world) quiet(t *testing.T) []string {
	t.Helper()
	heard := w.kubernetesHeard(t)
	eventually(t, "the bridge asks nothing more", func() error {
		before := len(heard)
		take(t, time.Second)
		if heard = w.kubernetesHeard(t); len(heard) != before {
			return fmt.Errorf("the last is %s", heard[len(heard)-1])
		}
		return nil
	})
	return heard
}
