package main

import (
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

func TestAppsConfig(t *testing.T) {
	build := currentBuild().Version
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
			Prefix: "flyte.apps", InboxPrefix: "_INBOX", MaxReads: 4, MaxPendingReads: 400, MaxWrites: 1000, Version: build, ClusterName: "default",
			Namespaces: []string{"flyte"},
			Deploy: kservice.DeployConfig{
				Namespace: "flyte", DefaultRequestTimeout: 300 * time.Second, MaxRequestTimeout: 3600 * time.Second, SuffixTemplate: "{{ project }}-{{ domain }}",
			},
		}},
		{"everything", []string{
			"--prefix=p", "--log-inbox-prefix=_P", "--max-app-reads=5", "--max-pending-app-reads=6", "--max-app-writes=7", "--cluster-name=blue", "--base-domain=example.com", "--scheme=http",
			"--ingress-port=81", "--enable-writes", "--namespaces=a,b", "--deploy-namespace=b", "--default-request-timeout=1m", "--max-request-timeout=2m",
			"--default-env=A=1", "--default-service-account=runner", "--endpoint-suffix=x",
			"--allowed-service-accounts=a,b", "--allowed-references=secret/{project}.*",
		}, appsvc.Config{
			Prefix: "p", InboxPrefix: "_P", MaxReads: 5, MaxPendingReads: 6, MaxWrites: 7, Version: build, ClusterName: "blue",
			App:          kservice.Config{BaseDomain: "example.com", Scheme: "http", Port: 81},
			EnableWrites: true, Namespaces: []string{"a", "b"},
			Deploy: kservice.DeployConfig{
				Namespace: "b", DefaultRequestTimeout: time.Minute, MaxRequestTimeout: 2 * time.Minute, DefaultEnv: map[string]string{"A": "1"},
				DefaultServiceAccount: "runner", SuffixTemplate: "x",
				Fence: kservice.Fence{ServiceAccounts: []string{"a", "b"}, References: references},
			},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, _, err := load(serveOptions(), test.args, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := cfg.appsConfig()
			if diff := cmp.Diff(got, test.want, cmp.Comparer(func(a, b kservice.Reference) bool { return a.String() == b.String() })); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
			got.EnableWrites = true
			if err := got.Validate(); err != nil {
				t.Errorf("the service refuses it: %v", err)
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
			cfg, _, _, err := load(serveOptions(), strings.Fields(args), nil)
			if err != nil {
				t.Fatal(err)
			}
			got := cfg.appsConfig()
			got.EnableWrites = true
			if err := got.Validate(); err != nil {
				t.Errorf("the service refuses it: %v", err)
			}
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
		{"key", []string{"--config", writeFile(t, dir, "text.yaml", `default-env: 'A=1\,2,B=3'`)}, nil, map[string]string{"A": "1,2", "B": "3"}},
		{"key with a list", []string{"--config", writeFile(t, dir, "list.yaml", "default-env:\n- A=1,B=2\n- 'C=\\,'\n- D=3\n")}, nil, map[string]string{"A": "1,B=2", "C": `\,`, "D": "3"}},
		{"empty list", []string{"--config", writeFile(t, dir, "none.yaml", "default-env: []")}, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, _, err := load(serveOptions(), test.args, test.environ)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(cfg.DefaultEnv, test.want); diff != "" {
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
	} {
		_, _, _, err := load(serveOptions(), []string{"--default-env=" + text}, nil)
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
		if got := checkEndpointSuffix(text) == nil; got != good {
			t.Errorf("%q: got %t, want %t", text, got, good)
		}
	}
}

func TestWarnOfGuests(t *testing.T) {
	for _, test := range []struct {
		address string
		writes  bool
		want    int
	}{
		{"127.0.0.1", true, 0},
		{"::1", true, 0},
		{"0.0.0.0", false, 1},
		{"0.0.0.0", true, 2},
		{"192.0.2.1", true, 2},
	} {
		core, logs := observer.New(zapcore.WarnLevel)
		warnOfGuests(zap.New(core), &net.TCPAddr{IP: net.ParseIP(test.address), Port: 4222}, test.writes)
		if got := logs.Len(); got != test.want {
			t.Errorf("%s, writes %t: got %d warnings, want %d", test.address, test.writes, got, test.want)
		}
		if got, want := logs.FilterMessageSnippet("delete apps").Len() == 1, test.want == 2; got != want {
			t.Errorf("%s, writes %t: got a warning of writes %t, want %t", test.address, test.writes, got, want)
		}
	}
}

// TestServeAnswersForApps: `serve` offers every operation, and says whether it
// serves those that change apps.
func TestServeAnswersForApps(t *testing.T) {
	names, err := subjects.New("other.prefix")
	if err != nil {
		t.Fatal(err)
	}
	want := names.APIListFilters()
	for _, op := range []subjects.APIOp{
		subjects.APIGet, subjects.APIReplicas, subjects.APIIngress, subjects.APIDeploy, subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica,
	} {
		filter, err := names.APIFilter(op)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, filter)
	}
	slices.Sort(want)
	infoSubject, err := micro.ControlSubject(micro.InfoVerb, appsvc.ServiceName, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, writes := range []bool{false, true} {
		t.Run("writes "+strconv.FormatBool(writes), func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Prefix, cfg.ClusterName, cfg.EnableWrites = names.Prefix(), "blue", writes
			core, logs := observer.New(zapcore.InfoLevel)
			s := startServing(t, cfg, fakeBridge{run: untilDone}, zap.New(core))
			nc, err := nats.Connect(s.natsURLs[0])
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			var info micro.Info
			waitFor(t, "every endpoint", func() bool {
				m, err := nc.Request(infoSubject, nil, time.Second)
				if err != nil {
					return false
				}
				info = micro.Info{}
				if err := json.Unmarshal(m.Data, &info); err != nil {
					t.Fatal(err)
				}
				return len(info.Endpoints) == len(want) // they are added one by one
			})
			var got []string
			for _, endpoint := range info.Endpoints {
				got = append(got, endpoint.Subject)
			}
			slices.Sort(got)
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("endpoints: got - want +:\n%s", diff)
			}
			if got, want := info.Metadata["cluster"]+" "+info.Metadata["writes"], "blue "+strconv.FormatBool(writes); got != want {
				t.Errorf("got metadata of %q, want %q", got, want)
			}
			if got, want := logs.FilterMessageSnippet("writes are on").Len() == 1, writes; got != want {
				t.Errorf("got a line that writes are on: %t, want %t", got, want)
			}
			if got, want := logs.FilterMessageSnippet("writes are off").Len() == 1, !writes; got != want {
				t.Errorf("got a line that writes are off: %t, want %t", got, want)
			}
			// The bridge is the cache: what it says is what the requester hears.
			id := subjects.AppID{Project: "shop", Domain: "production", Name: "search"}
			subject, err := names.API(subjects.APIGet, id)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := nc.Request(subject, nil, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := string(answer.Data), errUnsynced; !strings.Contains(got, want) {
				t.Errorf("got the answer %q, want %q in it", got, want)
			}
			s.stop()
			if err := s.wait(t); err != nil {
				t.Error(err)
			}
		})
	}
}
