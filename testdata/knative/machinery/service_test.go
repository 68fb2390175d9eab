package machinery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func newService(name, image string) *servingv1.Service {
	svc := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: testenv.DefaultNamespace, Name: name,
		Labels: map[string]string{"flyte.org/app-managed": "true"}, // testenv.Recorder notes these
	}}
	svc.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	return svc
}

func isReady(svc *servingv1.Service) error {
	if !svc.IsReady() {
		return fmt.Errorf("not ready: %+v", svc.Status.Conditions)
	}
	return nil
}

// newerThan checks that another Revision is the one that is ready.
func newerThan(revision string) func(*servingv1.Service) error {
	return func(svc *servingv1.Service) error {
		if svc.Status.LatestReadyRevisionName == revision {
			return fmt.Errorf("still %s", revision)
		}
		return isReady(svc)
	}
}

// update changes a Service whatever Knative writes at the same time.
func update(t *testing.T, c *testenv.Cluster, svc *servingv1.Service, change func(*servingv1.Service)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
			return err
		}
		change(svc)
		return c.Client.Update(t.Context(), svc)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// replicas checks how many pods of a Service's latest Revision run.
func replicas(t *testing.T, c *testenv.Cluster, svc *servingv1.Service, want int) {
	t.Helper()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: svc.Namespace, Name: svc.Status.LatestCreatedRevisionName + "-deployment",
	}}
	eventually(t, c, deployment, "replicas", func(d *appsv1.Deployment) error {
		if got := int(d.Status.ReadyReplicas); got != want {
			return fmt.Errorf("%d replicas are ready, want %d", got, want)
		}
		return nil
	})
}

// A Service goes through Knative's webhook, is brought up by its reconcilers in a handful of
// versions, is scaled, and takes everything with it when it goes.
func TestService(t *testing.T) {
	c, _ := start(t)
	history, err := c.Record(t.Context(), testenv.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	svc := newService("story", "dev.local/story:1")
	if err := c.Client.Create(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	if svc.Annotations["serving.knative.dev/creator"] == "" || svc.Spec.Template.Spec.TimeoutSeconds == nil {
		t.Errorf("Knative's webhook has not completed the Service: %+v", svc)
	}
	eventually(t, c, svc, "the Service becomes ready", isReady)
	t.Logf("ready after %s and %d versions", time.Since(began).Round(time.Millisecond), len(history.Observations()))
	if got := svc.Status.URL.String(); got != "http://story."+svc.Namespace+".example.com" {
		t.Errorf("its URL is %s", got)
	}
	replicas(t, c, svc, 1)

	first := svc.Status.LatestReadyRevisionName
	update(t, c, svc, func(svc *servingv1.Service) {
		svc.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/min-scale": "3"}
	})
	eventually(t, c, svc, "the second Revision becomes ready", newerThan(first))
	replicas(t, c, svc, 3)

	if err := c.Client.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	pods := &corev1.PodList{}
	eventually(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: svc.Namespace}}, "its pods go with it", func(*corev1.Namespace) error {
		if err := c.Client.List(t.Context(), pods, client.InNamespace(svc.Namespace), client.MatchingLabels{"serving.knative.dev/service": svc.Name}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return nil
	})
	if err := history.Stop(); err != nil {
		t.Fatal(err)
	}
}

// What Knative's webhook refuses, it refuses with its own words.
func TestRefused(t *testing.T) {
	c, _ := start(t)
	svc := newService("refused", "dev.local/refused:1")
	svc.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "K_SERVICE", Value: "x"}}
	err := c.Client.Create(t.Context(), svc)
	if err == nil {
		t.Fatal("Knative takes an environment variable of its own")
	}
	want := `"K_SERVICE" is a reserved environment variable: spec.template.spec.containers[0].env[0].name`
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
