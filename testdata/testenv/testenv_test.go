package testenv_test

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	soon = suite.Patience         // for what has to come
	much = 200 * time.Millisecond // for what must not come
)

func TestMain(m *testing.M) { suite.Main(m, shared.Stop) }

// shared is for tests that only read and write objects: each has a namespace of its own.
var shared kubesuite.Cluster

// namespace is one of the shared cluster, for one test.
func namespace(t *testing.T, c *testenv.Cluster) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := c.Client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

func start(t *testing.T, opts testenv.Options) *testenv.Cluster {
	t.Helper()
	opts.Logf = t.Logf
	c, err := testenv.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// record records what the API server shows of DefaultNamespace.
func record(t *testing.T, c *testenv.Cluster) *testenv.Recorder {
	t.Helper()
	return recordIn(t, c, testenv.DefaultNamespace)
}

func recordIn(t *testing.T, c *testenv.Cluster, namespace string) *testenv.Recorder {
	t.Helper()
	r, err := c.Record(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// must makes a step of a story one line.
func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func ready(svc *servingv1.Service) string {
	cond := svc.Status.GetCondition(servingv1.ServiceConditionReady)
	if cond == nil {
		return "none"
	}
	return string(cond.Status)
}

func TestStory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, testenv.Options{Audit: true})
	r := record(t, c)
	service, revision := must[*servingv1.Service](t), must[*servingv1.Revision](t)

	app := testenv.App{Project: "shop", Domain: "production", Name: "web"}
	svc := service(c.Create(ctx, app))
	versions := []string{svc.ResourceVersion}
	step := func(name string, next *servingv1.Service, wantReady string) {
		t.Helper()
		if got := ready(next); got != wantReady {
			t.Errorf("%s: Ready = %s, want %s", name, got, wantReady)
		}
		versions = append(versions, next.ResourceVersion)
		svc = next
	}
	step("progressing", service(c.Progressing(ctx, svc)), "Unknown")
	step("ready", service(c.Ready(ctx, svc, "", 1)), "True")
	if got, want := svc.Status.URL.String(), "http://"+svc.Name+".flyte.example.com"; got != want {
		t.Errorf("url = %s, want %s", got, want)
	}
	rev := revision(c.Scale(ctx, svc, 3))
	if got, want := *rev.Status.ActualReplicas, int32(3); got != want {
		t.Errorf("actual replicas = %d, want %d", got, want)
	}
	if got, want := rev.Name, svc.Status.LatestReadyRevisionName; got != want || got == "" {
		t.Errorf("scaled Revision = %q, want %q", got, want)
	}
	step("failed", service(c.Failed(ctx, svc, "RevisionFailed", "the container ended")), "False")
	step("stopped", service(c.StopApp(ctx, svc)), "False")
	err := c.Client.Get(ctx, client.ObjectKeyFromObject(rev), &servingv1.Revision{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("read the stopped app's Revision: got %v, want not found", err)
	}
	if err := c.Delete(ctx, svc); err != nil {
		t.Fatal(err)
	}

	deleted, err := r.Wait(ctx, func(o testenv.Observation) bool { return o.Type == watch.Deleted })
	if err != nil {
		t.Fatal(err)
	}
	seen := r.Observations()
	for i, want := range versions {
		if got := seen[i].ResourceVersion; got != want {
			t.Errorf("observation %d: version %s, want %s", i, got, want)
		}
		wantType := watch.Modified
		if i == 0 {
			wantType = watch.Added
		}
		if got := seen[i].Type; got != wantType {
			t.Errorf("observation %d: %s, want %s", i, got, wantType)
		}
	}
	if got, want := len(seen), len(versions)+1; got != want {
		t.Errorf("%d observations, want %d", got, want)
	}
	if got, want := deleted.UID, svc.UID; got != want {
		t.Errorf("deleted uid = %s, want %s", got, want)
	}
	requests := must[[]testenv.Request](t)(c.Audit())
	var creates int
	for _, request := range requests {
		if request.Verb == "create" && request.ObjectRef.APIGroup == "serving.knative.dev" && request.ObjectRef.Resource == "services" {
			creates++
		}
	}
	if got, want := creates, 1; got != want {
		t.Errorf("audited creations = %d, want %d", got, want)
	}
}

func TestRolloutHasSixVersions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, testenv.Options{})
	service := must[*servingv1.Service](t)
	before := service(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "before"}))
	r := record(t, c)
	svc := service(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "n"}))
	svc = service(c.Rollout(ctx, svc, "", 2))
	last, err := r.Wait(ctx, func(o testenv.Observation) bool { return o.ResourceVersion == svc.ResourceVersion })
	if err != nil {
		t.Fatal(err)
	}
	seen := r.Observations()
	if got, want := seen[0].UID, before.UID; got != want || seen[0].Type != watch.Added {
		t.Errorf("first observation = %s %s, want %s %s", seen[0].Type, got, watch.Added, want)
	}
	if got, want := len(seen), 1+6; got != want {
		t.Errorf("%d observations, want %d", got, want)
	}
	if got, want := ready(svc), "True"; got != want {
		t.Errorf("Ready = %s, want %s", got, want)
	}
	if got, want := last.Object.GetName(), svc.Name; got != want {
		t.Errorf("last object = %s, want %s", got, want)
	}
	for name, restart := range map[string]func() error{
		"in good order": func() error { return c.RestartAPIServer(ctx) },
		"after a crash": func() error {
			if err := c.KillAPIServer(); err != nil {
				return err
			}
			return c.StartAPIServer(ctx)
		},
	} {
		t.Run("restart "+name, func(t *testing.T) {
			host := c.Config.Host
			if err := restart(); err != nil {
				t.Fatal(err)
			}
			if got, want := c.Config.Host, host; got != want {
				t.Errorf("address = %s, want %s", got, want)
			}
			after := service(c.SetLabel(ctx, svc, "restarted", strings.ReplaceAll(name, " ", "-")))
			if got, want := after.UID, svc.UID; got != want {
				t.Errorf("uid = %s, want %s", got, want)
			}
			if _, err := r.Wait(ctx, func(o testenv.Observation) bool { return o.ResourceVersion == after.ResourceVersion }); err != nil {
				t.Fatal(err)
			}
		})
	}
	unmanaged := service(c.SetLabel(ctx, svc, "flyte.org/app-managed", ""))
	gone, err := r.Wait(ctx, func(o testenv.Observation) bool { return o.Type == watch.Deleted })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := gone.ResourceVersion, unmanaged.ResourceVersion; got != want {
		t.Errorf("version of the lost label = %s, want %s", got, want)
	}
}

func TestWithoutCRDsAndRights(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, testenv.Options{NoCRDs: true, Namespaces: []string{"one", "two"}})
	_, err := c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "n", Namespace: "one"})
	if err == nil {
		t.Fatal("created a Knative Service without its definition")
	}
	if err := c.InstallCRDs(); err != nil {
		t.Fatal(err)
	}
	must[*servingv1.Service](t)(c.Create(ctx, testenv.App{Project: "p", Domain: "d", Name: "n", Namespace: "two"}))

	nobody, err := c.User("nobody")
	if err != nil {
		t.Fatal(err)
	}
	powerless, err := client.New(nobody, client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := powerless.List(ctx, &servingv1.ServiceList{}); !apierrors.IsForbidden(err) {
		t.Errorf("list as nobody: got %v, want forbidden", err)
	}

	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.Kubeconfig(path); err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	got, want := must[*url.URL](t)(url.Parse(admin.Host)), must[*url.URL](t)(url.Parse(c.Config.Host))
	if got.Host != want.Host || want.Hostname() != "127.0.0.1" {
		t.Errorf("kubeconfig's server = %s, want %s on 127.0.0.1", got.Host, want.Host)
	}
	powerful, err := client.New(admin, client.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(servingv1.SchemeGroupVersion.WithKind("ServiceList"))
	if err := powerful.List(ctx, list); err != nil {
		t.Fatal(err)
	}
	if got, want := len(list.Items), 1; got != want {
		t.Errorf("%d Services, want %d", got, want)
	}
}

func TestRedeployAndBadURL(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := shared.Get(t)
	ns := namespace(t, c)
	r := recordIn(t, c, ns)
	service := must[*servingv1.Service](t)
	app := testenv.App{Project: "p", Domain: "d", Name: "n", Image: "i:1", Namespace: ns}
	svc := service(c.Create(ctx, app))
	svc = service(c.Rollout(ctx, svc, "", 1))
	svc = service(c.StopApp(ctx, svc))
	app.Image = "i:2"
	again := service(c.Redeploy(ctx, app))
	if got, want := again.UID, svc.UID; got != want {
		t.Errorf("uid = %s, want %s", got, want)
	}
	if got := again.Labels["flyte.org/app-stopped"]; got != "" {
		t.Errorf("stopped label = %q, want none", got)
	}
	read := must[testenv.App](t)(testenv.AppOf(again))
	if got, want := read.Spec.GetContainer().GetImage(), "i:2"; got != want {
		t.Errorf("image of the encoded spec = %s, want %s", got, want)
	}
	if got, want := again.Spec.Template.Spec.Containers[0].Image, "i:2"; got != want {
		t.Errorf("image of the container = %s, want %s", got, want)
	}
	if err := c.PatchStatus(ctx, again, map[string]any{"url": "http://[::1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(ctx, func(o testenv.Observation) bool {
		got, _, _ := unstructured.NestedString(o.Object.Object, "status", "url")
		return got == "http://[::1"
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.List(ctx, &servingv1.ServiceList{}); err == nil {
		t.Error("Knative's own type read a Service with an unparsable url")
	}
}

// A test binary that is killed cannot stop its cluster; the guard does.
func TestNothingStaysBehind(t *testing.T) {
	t.Parallel()
	c := start(t, testenv.Options{NoCRDs: true})
	dir, pids, err := testenv.Traces(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(pids), 2; got != want {
		t.Fatalf("%d servers, want %d", got, want)
	}
	if err := testenv.LoseParent(c); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(soon)
	for _, pid := range pids {
		for syscall.Kill(pid, 0) == nil {
			if time.Now().After(deadline) {
				t.Fatalf("process %d still runs", pid)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: got %v, want it gone", dir, err)
	}
}
