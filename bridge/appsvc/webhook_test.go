package appsvc_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	"knative.dev/serving/pkg/apis/config"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	autoscaler "knative.dev/serving/pkg/autoscaler/config"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

const webhookName = "validation.webhook.serving.knative.dev"

// webhook answers the API server as Knative's validating webhook does, with Knative's own validation.
type webhook struct {
	settings atomic.Pointer[config.Config]
	server   *httptest.Server
}

// startWebhook puts Knative's validation in front of a namespace until the end of the test.
func startWebhook(t *testing.T, p *place, settings *config.Config) *webhook {
	t.Helper()
	w := &webhook{}
	w.settings.Store(settings)
	server := httptest.NewTLSServer(w)
	w.server = server
	t.Cleanup(server.Close)
	hook := &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "knative-" + p.namespace},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: webhookName, AdmissionReviewVersions: []string{"v1"},
			SideEffects: new(registrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(10)),
			ClientConfig: registrationv1.WebhookClientConfig{
				URL:      new(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: p.namespace}},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
				Rule: registrationv1.Rule{
					APIGroups: []string{kservice.GroupVersion().Group}, APIVersions: []string{"v1"}, Resources: []string{"services"},
				},
			}},
		}},
	}
	p.must(p.Client.Create(t.Context(), hook))
	t.Cleanup(func() { p.must(p.Client.Delete(context.Background(), hook)) })
	return w
}

func (w *webhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	review := &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = w.admit(review.Request)
	review.Response.UID = review.Request.UID
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(review) // a lost answer fails the request
}

func (w *webhook) admit(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	refuse := func(reason string) *admissionv1.AdmissionResponse {
		status := apierrors.NewBadRequest(reason).Status()
		return &admissionv1.AdmissionResponse{Result: &status}
	}
	svc, old := &servingv1.Service{}, &servingv1.Service{}
	if err := json.Unmarshal(r.Object.Raw, svc); err != nil {
		return refuse("decoding request failed: cannot decode incoming new object: " + err.Error())
	}
	ctx := apis.WithUserInfo(config.ToContext(context.Background(), w.settings.Load()), &r.UserInfo)
	if r.Operation == admissionv1.Update {
		if err := json.Unmarshal(r.OldObject.Raw, old); err != nil {
			return refuse("decoding request failed: cannot decode incoming old object: " + err.Error())
		}
		ctx = apis.WithinUpdate(ctx, old)
	} else {
		ctx = apis.WithinCreate(ctx)
	}
	svc.SetDefaults(ctx) // as the defaulting webhook has done before
	all := svc.Validate(ctx)
	if errs := all.Filter(apis.ErrorLevel); errs != nil {
		return refuse("validation failed: " + errs.Error())
	}
	response := &admissionv1.AdmissionResponse{Allowed: true}
	for _, warning := range all.Filter(apis.WarningLevel).WrappedErrors() {
		response.Warnings = append(response.Warnings, warning.Error())
	}
	return response
}

// What only the settings of the cluster forbid is refused by Knative's webhook, and its words are the
// answer. With the settings that Flyte's apps need, an app is deployed, stopped and started again.
func TestRefusedByKnative(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	plain := corpus.Settings(t)
	var err error
	plain.Features, err = config.NewFeaturesConfigFromMap(nil)
	p.must(err)
	plain.Defaults, err = config.NewDefaultsConfigFromMap(nil)
	p.must(err)
	plain.Autoscaler, err = autoscaler.NewConfigFromMap(nil)
	p.must(err)
	other := subjects.AppID{Project: checkout.Project, Domain: checkout.Domain, Name: "other"}
	there := p.app(checkout).Service()
	there.Annotations[serving.CreatorAnnotation], there.Annotations[serving.UpdaterAnnotation] = "flyte", "somebody"
	p.must(p.Client.Create(t.Context(), there))
	hook := startWebhook(t, p, plain)
	soon(t, "the webhook is in force", func() error {
		probe := p.app(other)
		probe.Image = "i"
		if err := p.Client.Create(t.Context(), probe.Service(), client.DryRunAll); err == nil {
			return errNotYet
		}
		return nil
	})

	const spec = `{"pod": {"podSpec": {"containers": [{"name": "app", "image": "registry.example.com/hello:1"}], "nodeSelector": {"gpu": "yes"}}},
		"timeouts": {"requestTimeout": "3600s"}}`
	deploy, stop := p.subject(subjects.APIDeploy, checkout), p.subject(subjects.APIStop, checkout)
	words := []string{"kubernetes refuses it: admission webhook", webhookName, "denied the request: validation failed: "}
	ofPod := append(slices.Clone(words), "must not set the field(s): spec.template.spec.nodeSelector", "expected 0 <= 3600 <= 600: spec.template.spec.timeoutSeconds")
	p.refused(p.json(p.subject(subjects.APIDeploy, other), deploying(t, spec)), subjects.CodeInvalidArgument, ofPod...)
	if svc := p.knativeService(kservice.Name(other)); svc != nil {
		t.Errorf("got %v, want none", svc)
	}
	p.refused(p.json(deploy, deploying(t, spec)), subjects.CodeInvalidArgument, ofPod...)
	p.refused(p.json(stop, nil), subjects.CodeInvalidArgument, append(words, "initial-scale=0 not allowed by cluster")...)
	p.untouched(there)

	hook.settings.Store(corpus.Settings(t))
	p.outcome(p.json(deploy, deploying(t, spec)), subjects.OutcomeUpdated)
	p.outcome(p.json(stop, nil), subjects.OutcomeStopped)
	p.outcome(p.json(stop, nil), subjects.OutcomeUnchanged)
	p.outcome(p.json(deploy, deploying(t, spec)), subjects.OutcomeUpdated)
	now := p.present(kservice.Name(checkout))
	if now.Spec.Template.Spec.NodeSelector["gpu"] != "yes" || len(now.Spec.Template.Annotations) != 0 || now.Annotations[serving.CreatorAnnotation] != "flyte" {
		t.Errorf("it is not started again: %v %v", now.Annotations, now.Spec)
	}
}

// Without Knative's webhook nothing is written, and the answer says so.
func TestWebhookUnavailable(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	hook := startWebhook(t, p, corpus.Settings(t))
	hook.server.Close()
	soon(t, "the webhook is in force", func() error {
		if err := p.Client.Create(t.Context(), p.app(checkout).Service(), client.DryRunAll); err == nil {
			return errNotYet
		}
		return nil
	})
	p.refused(p.json(p.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")), subjects.CodeUnavailable,
		webhookName, "connection refused", "; nothing was written")
	if svc := p.knativeService(kservice.Name(checkout)); svc != nil {
		t.Errorf("got %v, want none", svc)
	}
}
