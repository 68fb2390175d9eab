package knative

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/cert"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// installCRDs installs the definitions of all that Knative writes, as its modules ship them.
func (k *Knative) installCRDs() error {
	began := time.Now()
	var paths []string
	for _, name := range []string{"serving", "networking", "caching"} {
		paths = append(paths, filepath.Join(k.bin, "config", name))
	}
	_, err := envtest.InstallCRDs(k.cluster.Config, envtest.CRDInstallOptions{
		Scheme: k.client.Scheme(), Paths: paths, ErrorIfPathMissing: true,
		MaxTime: timeout, PollInterval: 20 * time.Millisecond,
	})
	if err != nil {
		return fmt.Errorf("install its definitions: %w", err)
	}
	k.logf("knative: its definitions are served after %s", since(began))
	return nil
}

// certify writes the webhooks' certificate and key, and returns what verifies them.
func (k *Knative) certify() (authority []byte, err error) {
	authority, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	if err := os.WriteFile(k.file("webhook.crt"), authority, 0o600); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	k.web = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	return authority, os.WriteFile(k.file("webhook.key"), key, 0o600)
}

// registerWebhooks has the API server ask Knative's program, by its address where Knative's own
// files name a Service.
func (k *Knative) registerWebhooks(ctx context.Context, authority []byte) error {
	mutating, validating, config := new(admissionv1.MutatingWebhookConfiguration),
		new(admissionv1.ValidatingWebhookConfiguration), new(admissionv1.ValidatingWebhookConfiguration)
	for name, into := range map[string]client.Object{
		"defaulting.yaml": mutating, "resource-validation.yaml": validating, "configmap-validation.yaml": config,
	} {
		if err := k.read(filepath.Join("webhooks", name), into); err != nil {
			return err
		}
	}
	direct := func(c *admissionv1.WebhookClientConfig, path string) {
		url := "https://" + k.address + path
		*c = admissionv1.WebhookClientConfig{URL: &url, CABundle: authority}
	}
	for i := range mutating.Webhooks {
		direct(&mutating.Webhooks[i].ClientConfig, "/defaulting")
	}
	for i := range validating.Webhooks {
		direct(&validating.Webhooks[i].ClientConfig, "/resource-validation")
	}
	for i := range config.Webhooks {
		hook := &config.Webhooks[i]
		direct(&hook.ClientConfig, "/config-validation")
		// Knative's own reconciler fills in the same.
		hook.Rules = []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}}
		hook.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: Namespace}}
	}
	for _, object := range []client.Object{mutating, validating, config} {
		if err := k.client.Create(ctx, object); err != nil {
			return fmt.Errorf("register a webhook: %w", err)
		}
	}
	return nil
}

// createActivator creates the Service that Knative's activator would have: Revisions get the
// activator's endpoints, and are not ready before there are some.
func (k *Knative) createActivator(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: Namespace, Name: "activator-service"}
	// Without a selector: or kube-controller-manager would remove the endpoints.
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	//nolint:staticcheck // Knative reads Endpoints, not EndpointSlices
	endpoints := &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "10.127.0.1"}},
		Ports:     []corev1.EndpointPort{{Name: "http", Port: 8012}, {Name: "http2", Port: 8013}, {Name: "https", Port: 8112}},
	}}}
	for _, object := range []client.Object{service, endpoints} {
		if err := k.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create the activator's %T: %w", object, err)
		}
	}
	return nil
}

// read reads an object of Knative's modules.
func (k *Knative) read(name string, into any) error {
	data, err := os.ReadFile(filepath.Join(k.bin, "config", name))
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// admits returns when the API server asks every webhook before it stores an object: it learns of
// new ones a moment later.
func (k *Knative) admits(ctx context.Context) error {
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		if err := k.ended(); err != nil {
			return false, err
		}
		completed := probe("dev.local/probe")
		if err := k.client.Create(ctx, completed, client.DryRunAll); err != nil {
			return false, ignore(err)
		}
		if completed.Annotations["serving.knative.dev/creator"] == "" {
			return false, nil
		}
		if err := k.client.Create(ctx, probe("a b"), client.DryRunAll); err == nil {
			return false, nil
		} else if !strings.Contains(err.Error(), "denied the request") {
			return false, ignore(err)
		}
		wrong := &corev1.ConfigMap{}
		if err := k.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: configDefaults}, wrong); err != nil {
			return false, err
		}
		wrong.Data[maxTimeout] = "x"
		err := k.client.Update(ctx, wrong, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "denied the request"), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the webhooks: %w", err)
	}
	return nil
}

// ignore returns no error for those that pass: of a webhook that the API server cannot reach yet.
func ignore(err error) error {
	if apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) {
		return nil
	}
	return err
}

// probe is a Service that is never stored.
func probe(image string) *servingv1.Service {
	svc := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "probe"}}
	svc.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	return svc
}
