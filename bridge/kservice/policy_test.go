package kservice_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestPolicy(t *testing.T) {
	const (
		account  = "app.spec.pod.podSpec.serviceAccountName"
		runAs    = "app.spec.securityContext.runAs.k8sServiceAccount"
		listed   = "not in --allowed-service-accounts"
		own      = "the service account of appbridge itself, no option allows it"
		pattern  = "no pattern of --allowed-references matches this "
		node     = "reaches the node, no option allows it"
		beyond   = "reaches beyond the app, no option allows it"
		plane    = "tolerates the taints of the control plane, no option allows it"
		part     = "not only letters, digits, -, _ and ., no option allows it"
		podField = "app.spec.pod.podSpec."
	)
	pod := func(spec string) string { return `"pod": {"podSpec": {` + spec + `}}` }
	as := func(name string) string { return `"securityContext": {"runAs": {"k8sServiceAccount": "` + name + `"}}` }
	// container is a pod with a container beside one that names nothing.
	container := func(fields string) string { return pod(`"containers": [{"name": "a"}, {` + fields + `}]`) }
	const second = podField + "containers[1]."
	volume := func(source string) string { return pod(`"volumes": [{"name": "v", ` + source + `}]`) }

	// The app is p/d/n.
	policy := allowing(t, []string{"listed", "appbridge"}, "secret/{project}.{domain}.*", "configmap/shared", "persistentvolumeclaim/{project}.data", "secret/group/x y")
	policy.OwnServiceAccount = "appbridge"
	for _, tt := range []struct {
		name string
		spec string
		want []string
	}{
		{"container", `"container": {"image": "i"}`, nil},
		{"default account", `"container": {}, ` + as("default"), nil},
		{"configured default account", `"container": {}, ` + as("tenant"), nil},
		{"listed account", `"container": {}, ` + as("listed"), nil},
		{"another account", `"container": {}, ` + as("flyte"), []string{runAs + `: "flyte": ` + listed}},
		{"own account, though listed", `"container": {}, ` + as("appbridge"), []string{runAs + `: "appbridge": ` + own}},
		{"account of the pod, which the default replaces", pod(`"serviceAccountName": "flyte"`), nil},
		{"account for the pod", pod(``) + `, ` + as("flyte"), []string{runAs + `: "flyte": ` + listed}},
		{"account by its old name", pod(`"serviceAccount": "appbridge"`), []string{podField + `serviceAccount: "appbridge": ` + own}},
		{"account in another case", pod(`"SERVICEACCOUNT": "flyte"`), []string{podField + `serviceAccount: "flyte": ` + listed}},

		{"secret of the app", container(`"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "p.d.db", "key": "k"}}}]`), nil},
		{
			"secret of another domain", container(`"env": [{"name": "A"}, {"name": "E", "valueFrom": {"secretKeyRef": {"name": "p.e.db", "key": "k"}}}]`),
			[]string{second + `env[1].valueFrom.secretKeyRef.name: "p.e.db": ` + pattern + "secret"},
		},
		{"secret by the name of a config map", container(`"envFrom": [{"secretRef": {"name": "shared"}}]`), []string{second + `envFrom[0].secretRef.name: "shared": ` + pattern + "secret"}},
		{
			"config map", container(`"envFrom": [{"configMapRef": {"name": "shared"}}, {"configMapRef": {"name": "other"}}]`),
			[]string{second + `envFrom[1].configMapRef.name: "other": ` + pattern + "configmap"},
		},
		{
			"environment of the first container", pod(`"containers": [{"env": [{"name": "A"}, {"name": "E", "valueFrom": {"configMapKeyRef": {"name": "other", "key": "k"}}}]}]`),
			[]string{podField + `containers[0].env[1].valueFrom.configMapKeyRef.name: "other": ` + pattern + "configmap"},
		},
		{"volumes", pod(`"volumes": [{"name": "a", "secret": {"secretName": "p.d.tls"}}, {"name": "b", "secret": {"secretName": "q.d.tls"}}, {"name": "c", "projected": {"sources": [
			{"serviceAccountToken": {"path": "token"}}, {"secret": {"name": "q.d.tls"}}, {"configMap": {"name": "shared"}}]}}]`), []string{
			podField + `volumes[1].secret.secretName: "q.d.tls": ` + pattern + "secret",
			podField + `volumes[2].projected.sources[1].secret.name: "q.d.tls": ` + pattern + "secret",
		}},
		{
			"claim", pod(`"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "p.data"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "q.data"}}]`),
			[]string{podField + `volumes[1].persistentVolumeClaim.claimName: "q.data": ` + pattern + "persistentvolumeclaim"},
		},
		{"pull secret", pod(`"imagePullSecrets": [{"name": "p.d.pull"}, {"name": "pull"}]`), []string{podField + `imagePullSecrets[1].name: "pull": ` + pattern + "secret"}},
		{
			"secrets of Flyte's webhook", `"container": {}, "securityContext": {"secrets": [{"key": "k"}, {"group": "group/x y", "key": "k"}, {"group": "other", "key": "k"}]}`,
			[]string{`app.spec.securityContext.secrets[2].group: "other": ` + pattern + "secret"},
		},
		{
			"secrets that lead out of their group", `"container": {}, "securityContext": {"secrets": [{"group": "group/x y", "key": "../../token"},
				{"group": "group/x y", "key": "k }}{{- end -}}{{ with secret \"q\" }}{{ .Data.k"}, {"group": "group/x y", "groupVersion": "a/b", "key": "k"}, {"group": "p.d.x\" }}", "key": "k"}]}`,
			[]string{
				`app.spec.securityContext.secrets[0].key: "../../token": ` + part,
				`app.spec.securityContext.secrets[1].key: "k }}{{- end -}}{{ with secret \"q\" }}{{ .Data.k": ` + part,
				`app.spec.securityContext.secrets[2].groupVersion: "a/b": ` + part,
				`app.spec.securityContext.secrets[3].group: "p.d.x\" }}": quotes, braces and backslashes reach beyond the group, no option allows it`,
			},
		},

		{"host namespaces", pod(`"hostNetwork": true, "hostPID": true, "hostIPC": true, "hostUsers": true`), []string{
			podField + `hostNetwork: "true": ` + node + "; want false", podField + `hostPID: "true": ` + node + "; want false",
			podField + `hostIPC: "true": ` + node + "; want false", podField + `hostUsers: "true": ` + node + "; want false",
		}},
		{"no host namespaces", pod(`"hostNetwork": false, "hostPID": false, "hostIPC": false, "hostUsers": false, "shareProcessNamespace": false`), nil},
		{"node", pod(`"nodeName": "cp-1"`), []string{podField + "nodeName: " + node}},
		{"nodes with a GPU", pod(`"nodeSelector": {"gpu": "a100"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]`), nil},
		{"nodes of the control plane", pod(`"tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}, {"operator": "Exists"}]`), []string{
			podField + `tolerations[1].key: "node-role.kubernetes.io/control-plane": ` + plane, podField + `tolerations[2].key: "": ` + plane,
		}},
		{"host path", volume(`"hostPath": {"path": "/"}`), []string{podField + "volumes[0].hostPath: " + node}},
		{"empty host path", volume(`"hostPath": {}`), []string{podField + "volumes[0].hostPath: " + node}},
		{"driver", volume(`"csi": {"driver": "secrets-store.csi.k8s.io", "nodePublishSecretRef": {"name": "p.d.db"}}`), []string{podField + "volumes[0].csi: " + node}},
		{"network volume with a secret", volume(`"cephfs": {"secretRef": {"name": "p.d.db"}}`), []string{podField + "volumes[0].cephfs: " + beyond}},
		{"clone of a claim", volume(`"ephemeral": {"volumeClaimTemplate": {"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}}}`), []string{podField + "volumes[0].ephemeral: " + beyond}},
		{"certificate", volume(`"projected": {"sources": [{"podCertificate": {"signerName": "x"}}]}`), []string{podField + "volumes[0].projected.sources[0].podCertificate: " + beyond}},
		{"privileged", container(`"securityContext": {"privileged": true, "procMount": "Unmasked", "capabilities": {"add": ["CHOWN", "SYS_ADMIN"], "drop": ["ALL"]}}`), []string{
			second + `securityContext.capabilities.add[1]: "SYS_ADMIN": ` + node + "; want AUDIT_WRITE, CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, MKNOD, NET_BIND_SERVICE, SETFCAP, SETGID, SETPCAP, SETUID, SYS_CHROOT",
			second + `securityContext.privileged: "true": ` + node + "; want false",
			second + `securityContext.procMount: "Unmasked": ` + node + "; want Default",
		}},
		{"restricted", container(`"securityContext": {"privileged": false, "runAsUser": 0, "runAsNonRoot": false, "allowPrivilegeEscalation": false, "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "RuntimeDefault"}, "procMount": "Default"}`), nil},
		{"profile of the node", container(`"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}, "appArmorProfile": {"type": "Unconfined"}}`), []string{
			second + `securityContext.seccompProfile.type: "Localhost": ` + node + "; want RuntimeDefault",
			second + "securityContext.seccompProfile.localhostProfile: " + node,
			second + `securityContext.appArmorProfile.type: "Unconfined": ` + node + "; want RuntimeDefault",
		}},
		{"host port", container(`"ports": [{"containerPort": 80, "hostPort": 0}, {"containerPort": 81, "hostPort": 81}]`), []string{second + "ports[1].hostPort: " + node}},
		{
			"probe of another host", container(`"livenessProbe": {"httpGet": {"port": 80}}, "lifecycle": {"preStop": {"httpGet": {"port": 80, "host": "169.254.169.254"}}}`),
			[]string{second + "lifecycle.preStop.httpGet.host: " + node},
		},
		{"init container", pod(`"initContainers": [{"securityContext": {"privileged": true}}]`), []string{podField + `initContainers[0].securityContext.privileged: "true": ` + node + "; want false"}},
		{"ephemeral container", pod(`"ephemeralContainers": [{"name": "e"}]`), []string{podField + "ephemeralContainers: " + beyond}},
		{"priority", pod(`"priorityClassName": "system-node-critical"`), []string{podField + "priorityClassName: " + beyond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id, app := deployedApp(t, "{"+tt.spec+"}")
			cfg := deployDefaults()
			cfg.DefaultServiceAccount, cfg.Policy = "tenant", policy
			wrong, denied := validateApp(id, app, cfg)
			if len(wrong) > 0 || !slices.Equal(denied, tt.want) {
				t.Errorf("got %q and\n%s\nwant\n%s", wrong, strings.Join(denied, "\n"), strings.Join(tt.want, "\n"))
			}
			m, err := build(id, app, cfg)
			if (err == nil) != (len(tt.want) == 0) || (m == nil) != (err != nil) {
				t.Errorf("Build: got %v and %v, want what ValidateApp reports", m, err)
			}
		})
	}

	t.Run("account of the pod", func(t *testing.T) {
		id, app := deployedApp(t, "{"+pod(`"serviceAccountName": "flyte"`)+"}")
		_, denied := validateApp(id, app, deployDefaults())
		if want := []string{account + `: "flyte": ` + listed}; !slices.Equal(denied, want) {
			t.Errorf("got %q, want %q", denied, want)
		}
	})
	t.Run("own account by default", func(t *testing.T) {
		cfg := deployDefaults()
		cfg.Policy.OwnServiceAccount = "default"
		for spec, field := range map[string]string{`"container": {}`: runAs, pod(``): account, pod(`"serviceAccountName": "default"`): account} {
			id, app := deployedApp(t, "{"+spec+"}")
			_, denied := validateApp(id, app, cfg)
			if want := []string{field + `: "default": ` + own}; !slices.Equal(denied, want) {
				t.Errorf("%s: got %q, want %q", spec, denied, want)
			}
		}
	})
}

// Whatever an app carries, the metadata of its Service and template are those of its own id.
func TestBuildMetadata(t *testing.T) {
	id, app := deployedApp(t, `{"securityContext": {"secrets": [{"key": "k"}]}, "ingress": {"subdomain": "other", "cname": "other.example.com"}, "clusterPool": "other",
		"pod": {"podSpec": {"metadata": {"annotations": {"flyte.org/app-id": "x/y/z"}}}, "metadata": {
		"labels": {"project": "other", "domain": "other", "organization": "other", "inject-flyte-secrets": "true", "serving.knative.dev/serviceUID": "u", "sidecar.istio.io/inject": "false"},
		"annotations": {"flyte.org/app-id": "x/y/z", "flyte.secrets/s0": "x", "flyte.secrets/s1": "x", "serving.knative.dev/creator": "x", "networking.knative.dev/disable-auto-tls": "true"}}}}`)
	app.Metadata.Id.Org = "other"
	app.Metadata.Labels = map[string]string{kservice.LabelManaged: "false", kservice.AnnotationAppID: "x/y/z", "flyte.org/project": "other"}
	m, err := build(id, app, deployDefaults())
	if err != nil {
		t.Fatal(err)
	}
	delete(m.Annotations, kservice.AnnotationSpec)
	delete(m.Annotations, kservice.AnnotationSpecSHA)
	got, err := json.Marshal([]any{m.Labels, m.Annotations, m.Spec.Template.Labels, m.Spec.Template.Annotations})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"flyte.org/app-managed":"true","flyte.org/app-name":"n","flyte.org/domain":"d","flyte.org/project":"p"},` +
		`{"flyte.org/app-id":"p/d/n","flyte.org/app-org":"other"},` +
		`{"domain":"d","inject-flyte-secrets":"true","organization":"flyte","project":"p"},{"flyte.secrets/s0":"nnsxsoraejvsecq"}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseReference(t *testing.T) {
	for _, text := range []string{
		"secret/a", "configmap/{project}", "secret/{project}.{domain}.*", "secret/app-{project}-db", "persistentvolumeclaim/*", "secret/a*b.c", "secret/g/x y",
	} {
		r, err := kservice.ParseReference(text)
		if err != nil || r.String() != text {
			t.Errorf("%s: got %s and %v", text, r, err)
		}
	}
	for text, want := range map[string]string{
		"":                          `"" does not begin with secret/, configmap/ or persistentvolumeclaim/`,
		"secret":                    `"secret" has no name`,
		"Secret/a":                  `"Secret/a" does not begin with`,
		"pod/a":                     `"pod/a" does not begin with`,
		"secret/":                   `"secret/" has no name`,
		"secret/{Project}":          "braces that are not {project} or {domain}",
		"secret/{{ project }}":      "braces that are not {project} or {domain}",
		"secret/a\n":                "a character that cannot be printed",
		"secret/{project}-*":        `"secret/{project}-*" has no dot between two of {project}, {domain} and *`,
		"secret/{project}-{domain}": "has no dot between",
		"secret/{project}{project}": "has no dot between",
		"secret/*a*":                "has no dot between",
	} {
		if _, err := kservice.ParseReference(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// The patterns that docs/apps.md shows can be configured together.
func TestDocumentedReferences(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repositoryRoot, "docs", "apps.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "\nallowed-references:\n")
	block, _, _ = strings.Cut(block, "```")
	var patterns []string
	for line := range strings.Lines(block) {
		patterns = append(patterns, strings.Fields(line)[1])
	}
	if err := kservice.CheckReferences(allowing(t, nil, patterns...).References); err != nil || len(patterns) != 3 {
		t.Errorf("got %v for %q, want three patterns", err, patterns)
	}
}

// refers reports whether an app may refer to a Secret.
func refers(id subjects.AppID, name string, policy kservice.Policy) bool {
	app := &appv1.App{Spec: &appv1.Spec{
		AppPayload:      &appv1.Spec_Container{Container: &appv1.Container{}},
		SecurityContext: &appv1.SecurityContext{Secrets: []*appv1.Secret{{Group: name}}},
	}}
	_, denied := validateApp(id, app, kservice.DeployConfig{Policy: policy})
	return len(denied) == 0
}

func TestReferences(t *testing.T) {
	for _, tt := range []struct {
		pattern, project, domain, name string
		want                           bool
	}{
		{"secret/db", "a", "d", "db", true},
		{"secret/db", "a", "d", "db2", false},
		{"configmap/db", "a", "d", "db", false},
		{"secret/*", "a", "d", "db", true},
		{"secret/*", "a", "d", "a.db", false},
		{"secret/x*y", "a", "d", "xy", true},
		{"secret/x*x", "a", "d", "x", false},
		{"secret/{project}.*", "a", "d", "a.db", true},
		{"secret/{project}.*", "a", "d", "a.db.x", false},
		{"secret/{project}.*", "a", "d", "a-b.db", false},
		{"secret/{project}.*", "a-b", "d", "a-b.db", true},
		{"secret/{project}.*", "A", "d", "a.db", false},
		{"secret/{project}.*", "A", "d", "A.db", false},
		{"secret/{project}", "a.db", "d", "a.db", false},
		{"secret/{project}.*", "", "d", ".db", false},
		{"secret/{project}.{domain}", "a", "d", "a.d", true},
		{"secret/{project}.{domain}", "a", "e", "a.d", false},
		{"secret/x-{domain}-y", "a", "d", "x-d-y", true},
		{"secret/x-{domain}-y", "a", "e", "x-d-y", false},
	} {
		id := subjects.AppID{Project: tt.project, Domain: tt.domain, Name: "n"}
		if got := refers(id, tt.name, allowing(t, nil, tt.pattern)); got != tt.want {
			t.Errorf("%s for %s: %s: got %t, want %t", tt.pattern, id, tt.name, got, tt.want)
		}
	}
}

// Two patterns that pass the check give no name to two projects or domains. Short patterns are all
// tried, with short names.
func TestCheckReferences(t *testing.T) {
	var patterns []string
	parts := []string{"a", "*", "{project}", "{domain}", "a-{project}", "{project}-a"}
	for _, one := range parts {
		patterns = append(patterns, "secret/"+one)
		for _, other := range parts {
			patterns = append(patterns, "secret/"+one+"."+other)
		}
	}
	values := []string{"a", "b", "a-a", "a-b-a"}
	var names []string
	for _, one := range values {
		names = append(names, one)
		for _, other := range values {
			names = append(names, one+"."+other)
		}
	}
	var ids []subjects.AppID
	for _, project := range values {
		for _, domain := range values {
			ids = append(ids, subjects.AppID{Project: project, Domain: domain, Name: "n"})
		}
	}
	// owners are the ids that a pattern gives a name to.
	owners := map[string]map[string]map[subjects.AppID]bool{}
	for _, pattern := range patterns {
		owners[pattern] = map[string]map[subjects.AppID]bool{}
		for _, name := range names {
			owners[pattern][name] = map[subjects.AppID]bool{}
			for _, id := range ids {
				if refers(id, name, allowing(t, nil, pattern)) {
					owners[pattern][name][id] = true
				}
			}
		}
	}
	shared := func(one, other string) string {
		for _, name := range names {
			for a := range owners[one][name] {
				for b := range owners[other][name] {
					for _, placeholder := range []struct{ text, a, b string }{{"{project}", a.Project, b.Project}, {"{domain}", a.Domain, b.Domain}} {
						if (strings.Contains(one, placeholder.text) || strings.Contains(other, placeholder.text)) && placeholder.a != placeholder.b {
							return fmt.Sprintf("%s is %s's and %s's", name, a, b)
						}
					}
				}
			}
		}
		return ""
	}
	scoped := func(pattern string) bool { return strings.Contains(pattern, "{") }
	for i, one := range patterns {
		for _, other := range patterns[:i+1] {
			err := kservice.CheckReferences(allowing(t, nil, one, other).References)
			if wrong := shared(one, other); scoped(one) && scoped(other) && err == nil && wrong != "" {
				t.Errorf("%s and %s are accepted, and %s", one, other, wrong)
			}
			if (one == other || !scoped(one) || !scoped(other)) && err != nil {
				t.Errorf("%s and %s: got %v, want none", one, other, err)
			}
		}
	}
	for _, tt := range []struct {
		one, other string
		want       bool
	}{
		{"secret/{project}.*", "secret/{project}.{domain}.*", true},
		{"secret/{project}.db", "secret/{project}.api", true},
		{"secret/{project}-db", "secret/{project}-api", true},
		{"secret/x.{project}", "secret/y.{domain}", true},
		{"secret/{project}.*", "configmap/*.{project}", true},
		{"secret/{project}-db", "secret/{project}", false},
		{"secret/{project}.*", "secret/*.{project}", false},
		{"secret/{project}.*", "secret/{domain}.*", false},
		{"secret/{project}.*", "secret/{project}.{domain}", false},
	} {
		for _, pair := range [][]string{{tt.one, tt.other}, {tt.other, tt.one}} {
			err := kservice.CheckReferences(allowing(t, nil, pair...).References)
			if (err == nil) != tt.want || err != nil && (!strings.Contains(err.Error(), tt.one) || !strings.Contains(err.Error(), tt.other)) {
				t.Errorf("%q: got %v, want accepted: %t", pair, err, tt.want)
			}
		}
	}
}
