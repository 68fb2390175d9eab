package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

func TestAppsConfig(t *testing.T) {
	const build = "v1"
	reference, err := kservice.ParseReference("secret/{project}.*")
	if err != nil {
		t.Fatal(err)
	}
	references := []kservice.Reference{reference}
	for _, test := range []struct {
		name string
		args []string
		want appsvc.Config
	}{
		{"defaults", nil, appsvc.Config{
			Prefix: "flyte.apps", InboxPrefix: "_INBOX", MaxReply: 1 << 20, MaxReads: 4, MaxPendingReads: 400, MaxWrites: 1000, Version: build, ClusterName: "default",
			Namespaces: []string{"flyte"},
			Deploy: kservice.DeployConfig{
				Namespace: "flyte", DefaultRequestTimeout: 300 * time.Second, MaxRequestTimeout: 3600 * time.Second, SuffixTemplate: "{{ project }}-{{ domain }}",
			},
		}},
		{"everything", []string{
			"--prefix=p", "--log-inbox-prefix=_P", "--max-reply=64Ki", "--max-app-reads=5", "--max-pending-app-reads=6", "--max-app-writes=7", "--cluster-name=blue", "--base-domain=example.com", "--scheme=http",
			"--ingress-port=81", "--enable-writes", "--namespaces=a,b", "--deploy-namespace=b", "--default-request-timeout=1m", "--max-request-timeout=2m",
			"--default-env=A=1", "--default-service-account=runner", "--endpoint-suffix=x",
			"--allowed-service-accounts=a,b", "--allowed-references=secret/{project}.*",
		}, appsvc.Config{
			Prefix: "p", InboxPrefix: "_P", MaxReply: 64 << 10, MaxReads: 5, MaxPendingReads: 6, MaxWrites: 7, Version: build, ClusterName: "blue",
			App:          kservice.Config{BaseDomain: "example.com", Scheme: "http", Port: 81},
			EnableWrites: true, Namespaces: []string{"a", "b"},
			Deploy: kservice.DeployConfig{
				Namespace: "b", DefaultRequestTimeout: time.Minute, MaxRequestTimeout: 2 * time.Minute, DefaultEnv: map[string]string{"A": "1"},
				DefaultServiceAccount: "runner", SuffixTemplate: "x",
				Policy: kservice.Policy{ServiceAccounts: []string{"a", "b"}, References: references},
			},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, err := load(Serve, test.args, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := cfg.Apps("v1")
			if diff := cmp.Diff(got, test.want, cmp.Comparer(func(a, b kservice.Reference) bool { return a.String() == b.String() })); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
}

func TestDeployNamespace(t *testing.T) {
	for args, want := range map[string]struct {
		namespace string
		watched   []string
	}{
		"":                                      {"flyte", []string{"flyte"}},
		"--namespaces=a,b":                      {"a", []string{"a", "b"}},
		"--namespaces=a,b --deploy-namespace=":  {"a", []string{"a", "b"}},
		"--namespaces=a,b --deploy-namespace=b": {"b", []string{"a", "b"}},
		"--namespaces=*":                        {"flyte", nil},
		"--namespaces=* --deploy-namespace=b":   {"b", nil},
	} {
		t.Run(args, func(t *testing.T) {
			cfg, _, err := load(Serve, strings.Fields(args), nil)
			if err != nil {
				t.Fatal(err)
			}
			got := cfg.Apps("v1")
			if got, want := got.Deploy.Namespace, want.namespace; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got, want := got.Namespaces, want.watched; !slices.Equal(got, want) {
				t.Errorf("got %q watched, want %q", got, want)
			}
		})
	}
}

func TestDefaultEnv(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		name          string
		args, environ []string
		want          map[string]string
	}{
		{"nothing", nil, nil, nil},
		{"empty", []string{"--default-env="}, nil, nil},
		{"several, spaces", []string{"--default-env=A=1, B= two =2 ,C="}, nil, map[string]string{"A": "1", "B": " two =2 ", "C": ""}},
		{"flag twice", []string{"--default-env=A=1", `--default-env=B=2\,3`}, nil, map[string]string{"A": "1", "B": "2,3"}},
		{"escaped", nil, []string{`APPBRIDGE_DEFAULT_ENV=A=\\,B=1\,2\\\,3`}, map[string]string{"A": `\`, "B": `1,2\,3`}},
		{"key", []string{"--config", configtest.WriteFile(t, dir, "text.yaml", `default-env: 'A=1\,2,B=3'`)}, nil, map[string]string{"A": "1,2", "B": "3"}},
		{"key with a list", []string{"--config", configtest.WriteFile(t, dir, "list.yaml", "default-env:\n- A=1,B=2\n- 'C=\\,'\n- D=3\n")}, nil, map[string]string{"A": "1,B=2", "C": `\,`, "D": "3"}},
		{"empty list", []string{"--config", configtest.WriteFile(t, dir, "none.yaml", "default-env: []")}, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, err := load(Serve, test.args, test.environ)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(cfg.Deploy.DefaultEnv, test.want); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
	for text, want := range map[string]string{
		"A":           "variable 1 has no =",
		"A=1,2":       "variable 2 has no =",
		"A=1,":        "variable 2 has no =",
		"=1":          "the name of variable 1 is not one",
		"A=1,É=2":     "the name of variable 2 is not one",
		"A=1,B=2,A=1": "A is there twice",
		`A=1,B=\d`:    "variable 2 has a single backslash",
		`A=1\`:        "variable 1 has a single backslash",
		"A=\xff":      "the value of A is not text",
		"A=\x00":      "the value of A is not text",
		"A=1,PORT=2":  "PORT is a variable that Knative sets",
		"K_SERVICE=a": "K_SERVICE is a variable that Knative sets",
	} {
		_, _, err := load(Serve, []string{"--default-env=" + text}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "default-env: (hidden) from --default-env: "+want+"; want NAME=value") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// FuzzVariables: what is written of variables is read as the same ones.
func FuzzVariables(f *testing.F) {
	for _, seed := range []string{"", "A=1,B=2", `A=\,\\`, "A", "=", " A = 1 ", `\`, ",,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseVariables(text)
		if err != nil {
			return
		}
		again, err := parseVariables(formatVariables(got))
		if err != nil || !maps.Equal(again, got) {
			t.Errorf("%q: got %q, %v from what was written of it; want %q", text, again, err, got)
		}
	})
}

func TestEndpointSuffix(t *testing.T) {
	for text, good := range map[string]bool{
		"{{ project }}-{{ domain }}": true, "{{ project }}": true, "{{ domain }}.apps.Example": true, "fixed": true, "1-{{ project }}": true,
		"": false, "{{project}}": false, "{{ name }}": false, "{{ project }}-": false, ".{{ project }}": false, "{{ project }}..x": false,
		"{{ project }} x": false, "{{{ project }}}": false, "{{ project }}:80": false, "{{ project }}/x": false, "a_b": false,
		strings.Repeat("x.", 200) + "x": false,
	} {
		if got := isEndpointSuffix(text); got != good {
			t.Errorf("%q: got %t, want %t", text, got, good)
		}
	}
}
