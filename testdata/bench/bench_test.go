package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// The roles of a round are this program.
func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	if len(os.Args) > 1 && slices.Contains([]string{roleStub, rolePlain, roleLimit}, os.Args[1]) {
		if err := dispatch(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// stubClient is a client of a stub with Knative's own types.
func stubClient(t *testing.T, s *stub) client.WithWatch {
	t.Helper()
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := servingv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(&rest.Config{Host: server.URL}, client.Options{Scheme: scheme, Mapper: mapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStub(t *testing.T) {
	s, err := newStub(7, true)
	if err != nil {
		t.Fatal(err)
	}
	c := stubClient(t, s)
	s.change(8)
	services := &servingv1.ServiceList{}
	if err := c.List(t.Context(), services, client.InNamespace(testenv.DefaultNamespace)); err != nil {
		t.Fatal(err)
	}
	if got, want := len(services.Items), 7; got != want {
		t.Fatalf("got %d Services, want %d", got, want)
	}
	first := services.Items[0]
	want := subjects.AppID{Project: "bench", Domain: "production", Name: "app-000000"}
	if first.Name != kservice.Name(want) || first.Annotations["flyte.org/app-id"] != "bench/production/app-000000" {
		t.Errorf("got Service %s of %s, want %s of %s", first.Name, first.Annotations["flyte.org/app-id"], kservice.Name(want), want)
	}
	if got, want := first.ResourceVersion, "1000000022"; got != want { // 14 objects, and the app's second change is the last
		t.Errorf("got version %s, want %s", got, want)
	}
	if got, want := len(s.templates.services[0].text), 3072; got < want-512 || got > want+512 {
		t.Errorf("a Service has %d bytes, want about %d", got, want)
	}
	if got, want := len(s.templates.revision.text), 3072; got < want-512 || got > want+512 {
		t.Errorf("a Revision has %d bytes, want about %d", got, want)
	}
	// Metadata, page by page.
	names := map[string]bool{}
	for next, pages := "", 0; pages == 0 || next != ""; pages++ {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(servingv1.SchemeGroupVersion.WithKind("RevisionList"))
		if err := c.List(t.Context(), page, client.InNamespace(testenv.DefaultNamespace), client.Limit(3), client.Continue(next)); err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			names[item.Name] = true
		}
		next = page.Continue
	}
	if !names[first.Status.LatestReadyRevisionName] || len(names) != 7 {
		t.Errorf("got Revisions %v, want 7 with %s", names, first.Status.LatestReadyRevisionName)
	}
}

func TestStubWatch(t *testing.T) {
	s, err := newStub(3, true)
	if err != nil {
		t.Fatal(err)
	}
	s.change(1)
	w, err := stubClient(t, s).Watch(t.Context(), &servingv1.ServiceList{}, client.InNamespace(testenv.DefaultNamespace), &client.ListOptions{
		Raw: &metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got []string
	read := func(n int) {
		for range n {
			select {
			case e := <-w.ResultChan():
				got = append(got, fmt.Sprintf("%s %s", e.Type, e.Object.(*servingv1.Service).ResourceVersion))
			case <-time.After(5 * time.Minute):
				t.Fatalf("got %v and nothing more", got)
			}
		}
	}
	read(4)
	s.change(2)
	read(2)
	want := []string{"ADDED 1000000007", "ADDED 1000000004", "ADDED 1000000006", "BOOKMARK 1000000007", "MODIFIED 1000000008", "MODIFIED 1000000009"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// A small round with every process, and its table.
func TestRound(t *testing.T) {
	if testing.Short() {
		t.Log("not with -short: it builds appbridge")
		return
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "appbridge")
	if err := kubesuite.Build(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	cfg, err := readSettings([]string{"--bin", bin, "--base", bin, "--apps", "50", "--updates", "200", "--paced", "20", "--rounds", "1", "--rest", "0s", "--out", dir})
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := run(t.Context(), cfg, &table); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if !strings.Contains(table.String(), "| "+r.name) {
			t.Errorf("no line %q in\n%s", r.name, table.String())
		}
	}
	for name, variants := range map[string]int{"new.txt": 5, "base.txt": 1} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Count(string(text), "BenchmarkBridge/apps=50/"), variants; got != want {
			t.Errorf("got %d lines in %s, want %d:\n%s", got, name, want, text)
		}
	}
}

func TestMedianAndOrder(t *testing.T) {
	if got, want := median([]float64{3, 1, 2}), 2.0; got != want {
		t.Errorf("got median %v, want %v", got, want)
	}
	if got, want := median([]float64{4, 1}), 2.5; got != want {
		t.Errorf("got median %v, want %v", got, want)
	}
	all := rounds{
		{variantPlain: {figureRate: 10}, variantExternal: {figureRate: 5}},
		{variantPlain: {figureRate: 100}, variantExternal: {figureRate: 10}},
		{variantPlain: {figureRate: 1}, variantExternal: {figureRate: 2}},
	}
	if got, want := all.ratio(variantExternal, figureRate), 0.5; got != want {
		t.Errorf("got ratio %v, want %v", got, want)
	}
	if got, want := order(allVariants[:2], 1), []variant{variantExternal, variantPlain}; !slices.Equal(got, want) {
		t.Errorf("got order %v, want %v", got, want)
	}
	if got, want := order([]variant{variantPlain, variantExternal, variantLimit}, 1), []variant{variantExternal, variantPlain, variantLimit}; !slices.Equal(got, want) {
		t.Errorf("got order %v, want %v", got, want)
	}
}
