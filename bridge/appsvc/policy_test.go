package appsvc_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// deploying is a request to deploy an app with a spec in JSON.
func deploying(t *testing.T, spec string) *appv1.CreateRequest {
	t.Helper()
	request := &appv1.CreateRequest{App: &appv1.App{Spec: &appv1.Spec{}}}
	if err := protojson.Unmarshal([]byte(spec), request.GetApp().GetSpec()); err != nil {
		t.Fatal(err)
	}
	return request
}

// A deploy that reaches beyond its app is denied before Kubernetes is asked. The answer names each
// field, and the option that would allow it.
func TestDeployBeyondTheApp(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) {
		s.kube = untouchable(t)
		s.cfg.Deploy.DefaultServiceAccount = "tenant"
		s.cfg.Deploy.Policy = kservice.Policy{ServiceAccounts: []string{"appbridge"}, OwnServiceAccount: "appbridge"}
	})
	const pod = "app.spec.pod.podSpec."
	for _, tt := range []struct {
		name, spec string
		want       []string
	}{
		{
			"the account of appbridge", `{"container": {"image": "x"}, "securityContext": {"runAs": {"k8sServiceAccount": "appbridge"}}}`,
			[]string{`app.spec.securityContext.runAs.k8sServiceAccount: "appbridge": the service account of appbridge itself, no option allows it`},
		},
		{
			"another account", `{"container": {"image": "x"}, "securityContext": {"runAs": {"k8sServiceAccount": "flyte"}}}`,
			[]string{`app.spec.securityContext.runAs.k8sServiceAccount: "flyte": not in --allowed-service-accounts`},
		},
		{"anything in a pod spec", `{"pod": {"podSpec": {"serviceAccount": "appbridge", "hostNetwork": true, "nodeName": "cp",
			"containers": [{"image": "x", "securityContext": {"privileged": true},
			  "env": [{"name": "CREDS", "valueFrom": {"secretKeyRef": {"name": "appbridge-nats-creds", "key": "creds"}}}],
			  "envFrom": [{"secretRef": {"name": "secret-of-another-project"}}]}],
			"volumes": [{"name": "h", "hostPath": {"path": "/"}}, {"name": "s", "secret": {"secretName": "secret-of-another-project"}},
			  {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]}}}`, []string{
			pod + `serviceAccount: "appbridge": the service account of appbridge itself`,
			pod + `hostNetwork: "true": reaches the node, no option allows it`,
			pod + `nodeName: reaches the node`,
			pod + `containers[0].securityContext.privileged: "true": reaches the node`,
			pod + `containers[0].env[0].valueFrom.secretKeyRef.name: "appbridge-nats-creds": no pattern of --allowed-references matches this secret`,
			pod + `containers[0].envFrom[0].secretRef.name: "secret-of-another-project": no pattern of --allowed-references`,
			pod + `volumes[0].hostPath: reaches the node`,
			pod + `volumes[1].secret.secretName: "secret-of-another-project": no pattern of --allowed-references`,
		}},
		{
			"a group of secrets", `{"container": {"image": "x"}, "securityContext": {"secrets": [{"key": "own"}, {"group": "g", "key": "k"}]}}`,
			[]string{`app.spec.securityContext.secrets[1].group: "g": no pattern of --allowed-references`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.t = t
			text := w.refused(w.json(w.subject(subjects.APIDeploy, checkout), deploying(t, tt.spec)), subjects.CodePermissionDenied, tt.want...)
			if got := strings.Count(text, "; ") + 1; got < len(tt.want) {
				t.Errorf("%q: got %d parts, want %d", text, got, len(tt.want))
			}
			// What cannot be a request at all is named first. Knative's rules come last: what they
			// say of an app that is denied would depend on what it may not name.
			wrong := deploying(t, tt.spec)
			wrong.App.Metadata = &appv1.Meta{Id: &appv1.Identifier{Project: "another"}}
			w.refused(w.json(w.subject(subjects.APIDeploy, checkout), wrong), subjects.CodeInvalidArgument, "app.metadata.id.project")
			w.refused(w.json(w.subject(subjects.APIDeploy, checkout), deploying(t, strings.Replace(tt.spec, "{", `{"timeouts": {"requestTimeout": "-1s"}, `, 1))),
				subjects.CodePermissionDenied, tt.want...)
		})
	}
	w.t = t
}

// What the options allow is deployed. An app that names something, since Flyte or other options
// allowed it, can be read, stopped and deleted under any options, and is not started again.
func TestPolicyOptions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	reference, err := kservice.ParseReference("secret/{project}.*")
	p.must(err)
	allowed := serve(t, func(s *setup) {
		s.cfg, s.cache, s.kube = p.cfg, p.bridge, admin(p.Cluster)
		s.cfg.Deploy.Policy = kservice.Policy{ServiceAccounts: []string{"trainer"}, References: []kservice.Reference{reference}}
	})
	request := func(secret string) *appv1.CreateRequest {
		return deploying(t, `{"pod": {"podSpec": {"containers": [{"name": "app", "image": "registry.example.com/hello:1", "envFrom": [{"secretRef": {"name": "`+secret+`"}}]}]}},
			"securityContext": {"runAs": {"k8sServiceAccount": "trainer"}}}`)
	}
	own := checkout.Project + ".db"
	deploy := p.subject(subjects.APIDeploy, checkout)
	allowed.refused(allowed.json(deploy, request(checkout.Project+"-2.db")), subjects.CodePermissionDenied, "--allowed-references")
	allowed.outcome(allowed.json(deploy, request(own)), subjects.OutcomeCreated)
	svc := p.present(kservice.Name(checkout))
	if pod := svc.Spec.Template.Spec.PodSpec; pod.ServiceAccountName != "trainer" || pod.Containers[0].EnvFrom[0].SecretRef.LocalObjectReference != (corev1.LocalObjectReference{Name: own}) {
		t.Errorf("got %v", pod)
	}
	p.refused(p.json(deploy, request(own)), subjects.CodePermissionDenied, "--allowed-service-accounts", "--allowed-references")
	p.untouched(svc)
	p.outcome(p.json(p.subject(subjects.APIStop, checkout), nil), subjects.OutcomeStopped)
	p.refused(p.json(deploy, request(own)), subjects.CodePermissionDenied)
	p.outcome(p.json(p.subject(subjects.APIDelete, checkout), nil), subjects.OutcomeDeleted)
}

// An account that imports the subjects of a project reaches the apps of that project alone.
func TestAccountImport(t *testing.T) {
	t.Parallel()
	s := suite.NATSConfigured(t, `accounts {
		platform { users: [ { user: platform, password: p } ], exports: [ { service: "flyte.apps.api.>" } ] }
		shop { users: [ { user: shop, password: p } ], imports: [ { service: { account: platform, subject: "flyte.apps.api.*.shop.>" } } ] }
	}`)
	as := func(user string) string { return "nats://" + user + ":p@" + s.Addr().String() }
	cache := &memory{}
	other := subjects.AppID{Project: "shop2", Domain: checkout.Domain, Name: checkout.Name}
	cache.add(cached(t, checkout))
	cache.add(cached(t, other))
	w := serve(t, func(s *setup) { s.url, s.cache, s.kube = as("platform"), cache, untouchable(t) })
	tenant := dial(t, as("shop"))
	if _, err := tenant.Request(w.subject(subjects.APIGet, checkout), nil, patience); err != nil {
		t.Errorf("its own project: %v", err)
	}
	for _, subject := range []string{w.subject(subjects.APIGet, other), w.subject(subjects.APIDelete, other), w.listSubject("", ""), w.listSubject("shop2", "")} {
		if answer, err := tenant.Request(subject, nil, patience); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s: got %v and %v, want no responders", subject, answer, err)
		}
	}
}
