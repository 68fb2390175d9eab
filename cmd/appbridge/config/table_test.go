package config

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

// samples has for each option a text that is not its default.
func samples(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	seed := configtest.NewSeed(t)
	certificate, key := configtest.WriteKeyPair(t, dir, "client")
	return map[string]string{
		"config":                   configtest.WriteFile(t, dir, "empty.yaml", ""),
		"kubeconfig":               configtest.WriteKubeconfig(t, dir, "https://127.0.0.1:1"),
		"namespaces":               "one,two",
		"cluster-name":             "blue",
		"nats-url":                 "nats://one:4222,two:4223",
		"nats-creds":               configtest.WriteCreds(t, dir, seed),
		"nats-nkey":                configtest.WriteFile(t, dir, "user.nk", seed),
		"nats-user":                "bridge",
		"nats-password-file":       configtest.WriteFile(t, dir, "password", "secret\n"),
		"nats-token-file":          configtest.WriteFile(t, dir, "token", "secret"),
		"nats-jetstream-domain":    "hub",
		"nats-tls-ca":              certificate,
		"nats-tls-cert":            certificate,
		"nats-tls-key":             key,
		"nats-embedded":            "true",
		"nats-embedded-dir":        "/data",
		"nats-embedded-listen":     "127.0.0.1:0",
		"nats-embedded-max-bytes":  "2Gi",
		"prefix":                   "other.apps",
		"stream":                   "OTHER",
		"bucket":                   "other",
		"stream-replicas":          "3",
		"stream-max-age":           "24h",
		"stream-max-bytes":         "1Gi",
		"marker-max-age":           "720h",
		"encoding":                 "protobuf",
		"allow-unsafe-stream":      "true",
		"accept-reset":             "true",
		"base-domain":              "apps.example.com",
		"scheme":                   "http",
		"ingress-port":             "8443",
		"pod-conditions":           "true",
		"watch-buffer-size":        "7",
		"pending-bytes":            "64Mi",
		"max-log-rate":             "1Mi",
		"max-reply":                "64Ki",
		"flush-timeout":            "1m30s",
		"max-delay":                "45s",
		"audit-interval":           "5m",
		"leader-elect":             "true",
		"lease-namespace":          "leases",
		"lease-name":               "other",
		"max-log-streams":          "8",
		"max-pod-streams":          "9",
		"log-inbox-prefix":         "_OTHER",
		"max-app-reads":            "8",
		"max-pending-app-reads":    "9",
		"max-app-writes":           "10",
		"enable-writes":            "true",
		"deploy-namespace":         "flyte",
		"default-request-timeout":  "1m30s",
		"max-request-timeout":      "2h",
		"default-env":              "GREETING=hello there,LEVEL=info=1",
		"default-service-account":  "runner",
		"endpoint-suffix":          "apps-{{ project }}.{{ domain }}",
		"http-listen":              ":0",
		"pprof":                    "true",
		"log-level":                "debug",
		"log-format":               "console",
		"confirm-for":              "2s",
		"timeout":                  "30s",
		"repair":                   "true",
		"json":                     "true",
		"follow":                   "true",
		"tail":                     "10",
		"since":                    "10m",
		"since-time":               "2026-11-21T08:51:07.5Z",
		"replica":                  "search-shop-production-00001-deployment-1-a",
		"container":                "sidecar",
		"previous":                 "true",
		"timestamps":               "true",
		"include":                  "ERROR|WARN",
		"exclude":                  "^$",
		"max-duration":             "1h",
		"window":                   "33",
		"color":                    "always",
		"raw-output":               "true",
		"replica-prefix":           "never",
		"allowed-service-accounts": "trainer,web",
		"project":                  "shop",
		"domain":                   "production",
		"app":                      "search",
		"kind":                     "created,deleted",
		"status":                   "ACTIVE,FAILED",
		"until":                    "STOPPED",
		"generation":               "3",
		"resource-version":         "48213",
		"uid":                      "3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90",
		"allow-failed":             "true",
		"from":                     "pX2mVQkQGm3rXo0dJq8b1w/1040",
		"at":                       "2026-11-21T08:51:07.5Z",
		"output":                   "wide",
		"events":                   "true",
		"once":                     "true",
		"latest":                   "true",
		"headers-only":             "true",
		"bucket-stream":            "KV_other",
		"allowed-references":       "secret/{project}.{domain}.*,configmap/shared",
	}
}

// needs names the options that another one cannot stand without.
func needs(name string) []string {
	switch name {
	case "nats-tls-cert":
		return []string{"nats-tls-key"}
	case "nats-tls-key":
		return []string{"nats-tls-cert"}
	case "nats-user":
		return []string{"nats-password-file"}
	case "nats-password-file":
		return []string{"nats-user"}
	case "kind":
		return []string{"events"}
	case "until":
		return []string{"project", "domain", "app"}
	case "generation", "resource-version", "uid", "allow-failed":
		return []string{"until", "project", "domain", "app"}
	}
	return nil
}

// optionOf is the option with that name, for the fields of c.
func optionOf(c *Config, name string) option {
	options := allOptions(c)
	return options[slices.IndexFunc(options, func(o option) bool { return o.name == name })]
}

func TestEveryOptionCanBeSetInEveryWay(t *testing.T) {
	initial := Default(Serve)
	options, sample := allOptions(&initial), samples(t)
	dir := t.TempDir()
	ways := map[string]func(o option, names []string) (args, environ []string){
		"flag": func(_ option, names []string) (args, _ []string) {
			for _, name := range names {
				args = append(args, "--"+name+"="+sample[name])
			}
			return args, nil
		},
		"flag and value": func(_ option, names []string) (args, _ []string) {
			for _, name := range names {
				if optionOf(new(Config), name).kind == "" {
					args = append(args, "--"+name)
				} else {
					args = append(args, "--"+name, sample[name])
				}
			}
			return args, nil
		},
		"variable": func(_ option, names []string) (_, environ []string) {
			for _, name := range names {
				environ = append(environ, "APPBRIDGE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+sample[name])
			}
			return nil, environ
		},
		"key": func(o option, names []string) (args, _ []string) {
			var lines []string
			for _, name := range names {
				lines = append(lines, name+": "+sample[name])
			}
			return []string{"--config", configtest.WriteFile(t, dir, o.name+".yaml", strings.Join(lines, "\n")+"\n")}, nil
		},
		"key with a list": func(o option, names []string) (args, _ []string) {
			var lines []string
			for _, name := range names {
				lines = append(lines, name+":")
				for item := range strings.SplitSeq(sample[name], ",") {
					lines = append(lines, "  - "+item)
				}
			}
			return []string{"--config", configtest.WriteFile(t, dir, o.name+"-list.yaml", strings.Join(lines, "\n")+"\n")}, nil
		},
	}
	for _, o := range options {
		if _, ok := sample[o.name]; !ok {
			t.Errorf("no sample for %s", o.name)
			continue
		}
		if o.text() == sample[o.name] {
			t.Errorf("%s: the sample %q is the default", o.name, sample[o.name])
		}
		for way, arguments := range ways {
			if o.notInFile && strings.HasPrefix(way, "key") || !o.list && way == "key with a list" || o.onlyFlag && way == "variable" {
				continue
			}
			t.Run(o.name+" by "+way, func(t *testing.T) {
				names := append([]string{o.name}, needs(o.name)...)
				args, environ := arguments(o, names)
				got, set, err := load(forAll, args, environ)
				if err != nil {
					t.Fatalf("load %q %q: %v", args, environ, err)
				}
				if got, want := optionOf(&got, o.name).text(), sample[o.name]; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				want := Default(Serve)
				for _, other := range allOptions(&want) {
					if _, given := set[other.name]; given {
						if err := other.set(set[other.name].text); err != nil {
							t.Fatalf("set %s: %v", other.name, err)
						}
					}
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got %+v\nwant %+v", got, want)
				}
			})
		}
	}
	if len(sample) != len(options) {
		t.Errorf("got %d samples, want one for each of the %d options", len(sample), len(options))
	}
}

// TestEveryFieldHasAnOption: each option sets a field of its own, and no field
// is left over.
func TestEveryFieldHasAnOption(t *testing.T) {
	sample := samples(t)
	fields := map[string]string{}
	for _, o := range allOptions(new(Config)) {
		cfg, initial := Default(Serve), Default(Serve)
		if err := optionOf(&cfg, o.name).set(sample[o.name]); err != nil {
			t.Errorf("set %s: %v", o.name, err)
			continue
		}
		got, want := leaves(reflect.ValueOf(cfg)), leaves(reflect.ValueOf(initial))
		var changed []string
		for name, value := range got {
			if !reflect.DeepEqual(value, want[name]) {
				changed = append(changed, name)
			}
		}
		if len(changed) != 1 {
			t.Errorf("%s changes the fields %v, want exactly one", o.name, changed)
			continue
		}
		if other, taken := fields[changed[0]]; taken {
			t.Errorf("%s and %s both set %s", o.name, other, changed[0])
		}
		fields[changed[0]] = o.name
	}
	noOptions := []string{".Kube", ".App", ".Lines", ".Config.App", ".Config.Identity", ".Config.StandAside", ".Config.WatchLimits", ".Deploy.Policy.OwnServiceAccount"}
	for name := range leaves(reflect.ValueOf(Config{})) {
		if fields[name] == "" && !slices.Contains(noOptions, name) {
			t.Errorf("%s has no option", name)
		}
	}
}

// leaves returns the fields of a Config by their paths, with those of the configurations in it.
func leaves(v reflect.Value) map[string]any {
	inner := []reflect.Type{
		reflect.TypeFor[bridge.Config](), reflect.TypeFor[natsconn.Config](), reflect.TypeFor[kservice.DeployConfig](), reflect.TypeFor[kservice.Policy](), reflect.TypeFor[WatchOptions](),
	}
	out := map[string]any{}
	for i := range v.NumField() {
		name := "." + v.Type().Field(i).Name
		if !slices.Contains(inner, v.Field(i).Type()) {
			out[name] = v.Field(i).Interface()
			continue
		}
		for below, value := range leaves(v.Field(i)) {
			out[name+below] = value
		}
	}
	return out
}

func TestDefaultsAreAllowed(t *testing.T) {
	initial := Default(Serve)
	for _, o := range allOptions(&initial) {
		set := optionOf(new(Config), o.name)
		if err := set.set(o.text()); err != nil {
			t.Errorf("%s: its default %q is refused: %v", o.name, o.text(), err)
		}
		if got, want := set.text(), o.text(); got != want {
			t.Errorf("%s: got %q back, want %q", o.name, got, want)
		}
		if o.usage == "" || o.want == "" || o.section == "" {
			t.Errorf("%s: usage %q, want %q, section %q: all are needed", o.name, o.usage, o.want, o.section)
		}
	}
}

func TestBridgeConfig(t *testing.T) {
	sample := samples(t)
	cfg := Default(Serve)
	for _, o := range Serve.options(&cfg) {
		if err := o.set(sample[o.name]); err != nil {
			t.Fatal(err)
		}
	}
	got := reflect.ValueOf(cfg.Bridge("me"))
	for i := range got.NumField() {
		// The limits of watches have no options: what their defaults follow from is the API server's.
		// Tests alone shorten how long a replica stands aside.
		if name := got.Type().Field(i).Name; name != "WatchLimits" && name != "StandAside" && got.Field(i).IsZero() {
			t.Errorf("field %s of the bridge's configuration is not filled", got.Type().Field(i).Name)
		}
	}
	cfg.Namespaces = []string{"*"}
	if got := cfg.Bridge("me").Namespaces; got != nil {
		t.Errorf("got namespaces %q for *, want none, which means all", got)
	}
}

func TestHelpNamesEveryOption(t *testing.T) {
	for _, command := range []Command{Serve, Verify, Logs, Watch} {
		var text strings.Builder
		PrintOptions(&text, command)
		for _, o := range command.options(new(Config)) {
			if !strings.Contains(text.String(), "  "+o.synopsis()+"\n") {
				t.Errorf("the help text of %s lacks %s", command, o.flag())
			}
		}
	}
}

func TestConfigFileIsFoundRelativeToTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	configtest.WriteFile(t, dir, "bridge.yaml", "stream: HERE\n")
	cfg, set, err := load(Serve, nil, []string{"APPBRIDGE_CONFIG=bridge.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.Stream, "HERE"; got != want {
		t.Errorf("got stream %q, want %q", got, want)
	}
	if got, want := set["stream"].source, "bridge.yaml:stream (line 1)"; got != want {
		t.Errorf("got source %q, want %q", got, want)
	}
	if filepath.IsAbs(cfg.ConfigFile) {
		t.Errorf("got %q, want the name as it was given", cfg.ConfigFile)
	}
}
