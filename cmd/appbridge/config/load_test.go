package config

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

func TestPrecedence(t *testing.T) {
	file := configtest.WriteFile(t, t.TempDir(), "c.yaml", "stream: FILE\nbucket: file\n")
	tests := []struct {
		name          string
		args, environ []string
		stream        string
		bucket        string
	}{
		{"nothing", nil, nil, "FLYTE_APPS", "flyte-apps"},
		{"file", []string{"--config=" + file}, nil, "FILE", "file"},
		{"file named by a variable", nil, []string{"APPBRIDGE_CONFIG=" + file}, "FILE", "file"},
		{"variable over file", []string{"--config=" + file}, []string{"APPBRIDGE_STREAM=VAR"}, "VAR", "file"},
		{"flag over variable and file", []string{"--config=" + file, "--stream=FLAG"}, []string{"APPBRIDGE_STREAM=VAR"}, "FLAG", "file"},
		{"flag over variable", []string{"--stream=FLAG"}, []string{"APPBRIDGE_STREAM=VAR", "APPBRIDGE_BUCKET=var"}, "FLAG", "var"},
		{"flag over a bad variable", []string{"--stream=FLAG"}, []string{"APPBRIDGE_STREAM=no spaces"}, "FLAG", "flyte-apps"},
		{"variable over a bad file", []string{"--config=" + configtest.WriteFile(t, t.TempDir(), "bad.yaml", "stream: no.dots")}, []string{"APPBRIDGE_STREAM=VAR"}, "VAR", "flyte-apps"},
		{"empty variable is not set", []string{"--config=" + file}, []string{"APPBRIDGE_STREAM="}, "FILE", "file"},
		{"key without value is not set", []string{"--config=" + configtest.WriteFile(t, t.TempDir(), "null.yaml", "stream:\nbucket: ~\n")}, nil, "FLYTE_APPS", "flyte-apps"},
		{"last flag", []string{"--stream=A", "--stream=B"}, nil, "B", "flyte-apps"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, err := load(Serve, test.args, test.environ)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := cfg.Stream, test.stream; got != want {
				t.Errorf("got stream %q, want %q", got, want)
			}
			if got, want := cfg.Bucket, test.bucket; got != want {
				t.Errorf("got bucket %q, want %q", got, want)
			}
		})
	}
}

func TestLists(t *testing.T) {
	dir := t.TempDir()
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"commas", []string{"--namespaces=a,b"}, []string{"a", "b"}},
		{"spaces and repeats", []string{"--namespaces=a, b,a"}, []string{"a", "b"}},
		{"flag twice", []string{"--namespaces=a", "--namespaces=b"}, []string{"a", "b"}},
		{"all", []string{"--namespaces=*"}, []string{"*"}},
		{"flow list", []string{"--config", configtest.WriteFile(t, dir, "flow.yaml", "namespaces: [a, b]")}, []string{"a", "b"}},
		{"all in a list", []string{"--config", configtest.WriteFile(t, dir, "all.yaml", "namespaces: ['*']")}, []string{"*"}},
		{"alias", []string{"--config", configtest.WriteFile(t, dir, "alias.yaml", "cluster-name: &n a\nnamespaces: [*n, b]")}, []string{"a", "b"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg, _, err := load(Serve, test.args, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := cfg.Namespaces; !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestEverythingWrongAtOnce has a bad value for every option that can have
// one, spread over the three sources.
func TestEverythingWrongAtOnce(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	empty := "empty"
	configtest.WriteFile(t, dir, empty, "")
	configtest.WriteFile(t, dir, "c.yaml", strings.Join([]string{
		"kubeconfig: none",
		"cluster-name: two words",
		"nats-creds: empty",
		"nats-tls-ca: empty",
		"nats-embedded-listen: '4222'",
		"stream: [A, B]",
		"stream-replicas: 6",
		"stream-max-bytes: -1",
		"allow-unsafe-stream: {}",
		"scheme: https://",
		"watch-buffer-size: 0",
		"flush-timeout: 0",
		"lease-name: Upper",
		"max-log-streams: many",
		"log-inbox-prefix: _INBOX.>",
		"log-level: loud",
		"nats_url: nats://a",
		"stream-replicas: 1",
		"config: other.yaml",
		"frobnicate: true",
		"max-app-writes: 0",
		"deploy-namespace: Not_Ok",
		"default-env: [A=1, B]",
		"endpoint-suffix: '{{project}}'",
		"allowed-service-accounts: [good, Bad]",
		"allowed-references: [pod/x, 'secret/{project}-*', secret/shared]",
		"nats-token-file: empty",
		"nats-jetstream-domain: a.b",
	}, "\n"))
	args := []string{
		"--config=c.yaml", "--namespaces=ok,Not_Ok", "--nats-url=http://u:secret@host", "--nats-user=a\tb", "--nats-password-file=./missing", "--nats-tls-cert=empty", "--nats-embedded=maybe", "--nats-embedded-max-bytes=-1",
		"--prefix=a..b", "--stream-max-age=12", "--marker-max-age=-1h", "--encoding=xml", "--accept-reset=perhaps", "--ingress-port=65536", "--pod-conditions=some", "--pending-bytes=1.5", "--max-delay=10ms", "--audit-interval=500ms", "--max-log-rate=-1", "--max-reply=65535", "--max-app-reads=0", "--max-pending-app-reads=-1",
		"--lease-namespace=a.b", "--max-pod-streams=0", "--http-listen=localhost", "--pprof=2", "--default-request-timeout=1500ms", "--max-request-timeout=0", "--no-such-flag", "value", "--log-levle=info", "stray", "-x",
	}
	environ := []string{
		"HOME=/nowhere", "APPBRIDGE_NATS_NKEY=empty", "APPBRIDGE_NATS_TLS_KEY=missing", "APPBRIDGE_BUCKET=a.b",
		"APPBRIDGE_BASE_DOMAIN=https://apps", "APPBRIDGE_LEADER_ELECT=ja", "APPBRIDGE_ENABLE_WRITES=2", "APPBRIDGE_DEFAULT_SERVICE_ACCOUNT=Runner", "APPBRIDGE_LOG_FORMAT=xml",
		"APPBRIDGE_NATS_ULR=nats://u:secret@host", "APPBRIDGE_CONFORMANCE_DIR=/x", "APPBRIDGE_CLUSTER_BIN=/x", "APPBRIDGE_KNATIVE_BIN=/x",
	}
	_, _, err := load(Serve, args, environ)
	if err == nil {
		t.Fatal("got no error")
	}
	want := `--no-such-flag: unknown flag
--log-levle: unknown flag: did you mean --log-level?
-x: unknown flag
"stray": unexpected argument: flags are written --name value or --name=value, a switch --name or --name=false
APPBRIDGE_NATS_ULR: unknown environment variable: did you mean APPBRIDGE_NATS_URL?
namespaces: "ok,Not_Ok" from --namespaces: "Not_Ok" is not the name of a namespace; want names of namespaces separated by commas, or * alone for all
nats-url: "http://xxxxx@host" from --nats-url: want URLs like nats://host:4222 separated by commas (nats or tls, or all of them ws or wss)
nats-nkey: "empty" from APPBRIDGE_NATS_NKEY: it holds no user seed; want a readable file with the seed of a user nkey
nats-user: "a\tb" from --nats-user: want a name without control characters
nats-password-file: "./missing" from --nats-password-file: no such file or directory; want a readable file with one line
nats-tls-cert: "empty" from --nats-tls-cert: it holds no PEM block of type CERTIFICATE; want a readable PEM file with a certificate
nats-tls-key: "missing" from APPBRIDGE_NATS_TLS_KEY: no such file or directory; want a readable PEM file with a private key
nats-embedded: "maybe" from --nats-embedded: want true or false
nats-embedded-max-bytes: "-1" from --nats-embedded-max-bytes: want a number of bytes of at least 0, for example 1048576 or 64Mi
prefix: "a..b" from --prefix: want tokens of letters, digits, - and _ joined by dots
bucket: "a.b" from APPBRIDGE_BUCKET: want letters, digits, - and _
stream-max-age: "12" from --stream-max-age: want 0 or a duration of at least 1s, for example 10s or 1h30m
marker-max-age: "-1h" from --marker-max-age: want 0 or a duration of at least 1s, for example 10s or 1h30m
encoding: "xml" from --encoding: want json or protobuf
accept-reset: "perhaps" from --accept-reset: want true or false
base-domain: "https://apps" from APPBRIDGE_BASE_DOMAIN: want a domain name without scheme, port and path
ingress-port: "65536" from --ingress-port: want a whole number from 0 to 65535
pod-conditions: "some" from --pod-conditions: want true or false
pending-bytes: "1.5" from --pending-bytes: want a number of bytes of at least 1, for example 1048576 or 64Mi
max-delay: "10ms" from --max-delay: want a duration of at least 1s, for example 10s or 1h30m
audit-interval: "500ms" from --audit-interval: want 0 or a duration of at least 1s, for example 10s or 1h30m
leader-elect: "ja" from APPBRIDGE_LEADER_ELECT: want true or false
lease-namespace: "a.b" from --lease-namespace: "a.b" is not the name of a namespace; want the name of a namespace
max-pod-streams: "0" from --max-pod-streams: want a whole number from 1 to 1000000
max-log-rate: "-1" from --max-log-rate: want a number of bytes of at least 0, for example 1048576 or 64Mi
max-reply: "65535" from --max-reply: want a number of bytes of at least 65536, for example 1048576 or 64Mi
max-app-reads: "0" from --max-app-reads: want a whole number from 1 to 1000000
max-pending-app-reads: "-1" from --max-pending-app-reads: want a whole number from 0 to 1000000
enable-writes: "2" from APPBRIDGE_ENABLE_WRITES: want true or false
default-request-timeout: "1500ms" from --default-request-timeout: want 0 or a duration in whole seconds of at least 1s, for example 10s or 1h30m
max-request-timeout: "0" from --max-request-timeout: want a duration in whole seconds of at least 1s, for example 10s or 1h30m
default-service-account: "Runner" from APPBRIDGE_DEFAULT_SERVICE_ACCOUNT: want the name of a Kubernetes object
http-listen: "localhost" from --http-listen: want host:port with a port from 0 (any free one) to 65535
pprof: "2" from --pprof: want true or false
log-format: "xml" from APPBRIDGE_LOG_FORMAT: want auto, console or json
stream: a list from c.yaml:stream (line 6): want letters, digits, - and _
allow-unsafe-stream: a mapping from c.yaml:allow-unsafe-stream (line 9): want true or false
c.yaml:nats_url (line 17): unknown key: did you mean nats-url?
c.yaml:stream-replicas (line 18): duplicate key, the first is on line 7
c.yaml:config (line 19): unknown key
c.yaml:frobnicate (line 20): unknown key
kubeconfig: "none" from c.yaml:kubeconfig (line 1): no such file or directory; want a kubeconfig that names a cluster
cluster-name: "two words" from c.yaml:cluster-name (line 2): want 1 to 128 letters, digits and . _ ~ -
nats-creds: "empty" from c.yaml:nats-creds (line 3): it holds no user JWT; want a readable NATS credentials file
nats-token-file: "empty" from c.yaml:nats-token-file (line 27): it is empty; want a readable file with one line
nats-tls-ca: "empty" from c.yaml:nats-tls-ca (line 4): it holds no certificate; want a readable PEM file with certificates
nats-jetstream-domain: "a.b" from c.yaml:nats-jetstream-domain (line 28): want letters, digits, - and _
nats-embedded-listen: "4222" from c.yaml:nats-embedded-listen (line 5): want host:port with a port from 0 (any free one) to 65535
stream-replicas: "6" from c.yaml:stream-replicas (line 7): want a whole number from 1 to 5
stream-max-bytes: "-1" from c.yaml:stream-max-bytes (line 8): want a number of bytes of at least 0, for example 1048576 or 64Mi
scheme: "https://" from c.yaml:scheme (line 10): want a URL scheme, for example http or https
watch-buffer-size: "0" from c.yaml:watch-buffer-size (line 11): want a whole number from 1 to 1000000
flush-timeout: "0" from c.yaml:flush-timeout (line 12): want a duration of at least 1ms, for example 10s or 1h30m
lease-name: "Upper" from c.yaml:lease-name (line 13): want the name of a Kubernetes object
log-inbox-prefix: "_INBOX.>" from c.yaml:log-inbox-prefix (line 15): want tokens of letters, digits, - and _ joined by dots
max-log-streams: "many" from c.yaml:max-log-streams (line 14): want a whole number from 1 to 1000000
max-app-writes: "0" from c.yaml:max-app-writes (line 21): want a whole number from 1 to 1000000
deploy-namespace: "Not_Ok" from c.yaml:deploy-namespace (line 22): "Not_Ok" is not the name of a namespace; want the name of a namespace that is watched
default-env: (hidden) from c.yaml:default-env (line 23): variable 2 has no =; want NAME=value separated by commas, with a backslash before a comma or a backslash inside a value
allowed-service-accounts: "good,Bad" from c.yaml:allowed-service-accounts (line 25): want names of Kubernetes objects separated by commas
allowed-references: "pod/x,secret/{project}-*,secret/shared" from c.yaml:allowed-references (line 26): "pod/x" does not begin with secret/, configmap/ or persistentvolumeclaim/; "secret/{project}-*" has no dot between two of {project}, {domain} and *, so that the names of one project can be those of another; want secret/NAME, configmap/NAME or persistentvolumeclaim/NAME separated by commas, with a dot between any two placeholders, for example secret/{project}.{domain}.*
endpoint-suffix: "{{project}}" from c.yaml:endpoint-suffix (line 24): want letters, digits, - and . around {{ project }} and {{ domain }}, as they may stand in a host name; quoted in YAML
log-level: "loud" from c.yaml:log-level (line 16): want debug, info, warn or error`
	if diff := cmp.Diff(err.Error(), want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
	missing := []string{"config", "nats-embedded-dir"} // any text is right, apart from none
	for _, o := range Serve.options(new(Config)) {
		if !slices.Contains(missing, o.name) && !strings.Contains(err.Error(), "\n"+o.name+": ") {
			t.Errorf("no bad value of %s is tried", o.name)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	seed := configtest.NewSeed(t)
	configtest.WriteCreds(t, dir, seed)
	configtest.WriteFile(t, dir, "user.nk", seed)
	configtest.WriteFile(t, dir, "secret", "hunter2\n")
	configtest.WriteKeyPair(t, dir, "a")
	configtest.WriteKeyPair(t, dir, "b")
	configtest.WriteFile(t, dir, "list.yaml", "- a\n- b\n")
	configtest.WriteFile(t, dir, "two.yaml", "stream: A\n---\nstream: B\n")
	configtest.WriteFile(t, dir, "syntax.yaml", "stream: [A\nbucket: b\n")
	configtest.WriteFile(t, dir, "null-item.yaml", "namespaces:\n- a\n-\n")
	configtest.WriteFile(t, dir, "complex-key.yaml", "[a]: b\nstraem: x\n")
	configtest.WriteFile(t, dir, "scalar.yaml", "hello\n")
	configtest.WriteFile(t, dir, "embedded.yaml", "nats-url: nats://a\nnats-embedded: true\n")
	configtest.WriteFile(t, dir, "blocked", "")
	tests := []struct {
		name string
		args string
		want string
	}{
		{"flag without value", "--stream", "stream: --stream has no value: want letters, digits, - and _"},
		{"value in place of a flag", "serve now", "\"serve\": unexpected argument: flags are written --name value or --name=value, a switch --name or --name=false\n\"now\": unexpected argument: flags are written --name value or --name=value, a switch --name or --name=false"},
		{"one dash", "-stream=A", "-stream: unknown flag: did you mean --stream?"},
		{"three dashes", "---stream=A", "\"---stream\": not a flag: flags are written --name value or --name=value"},
		{"missing file", "--config=nowhere.yaml", "config: \"nowhere.yaml\" from --config: no such file or directory; want a readable YAML file"},
		{"folder as file", "--config=.", "config: \".\" from --config: is a directory; want a readable YAML file"},
		{"list", "--config=list.yaml", "config: list.yaml: line 1: want a mapping of keys to values"},
		{"scalar", "--config=scalar.yaml", "config: scalar.yaml: line 1: want a mapping of keys to values"},
		{"two documents", "--config=two.yaml", "config: two.yaml: line 2: want one YAML document, found another"},
		{"bad syntax", "--config=syntax.yaml", "config: syntax.yaml: yaml: line 1: did not find expected ',' or ']'"},
		{"null in a list", "--config=null-item.yaml", "namespaces: a list with an item that is not a text (line 3) from null-item.yaml:namespaces (line 1): want names of namespaces separated by commas, or * alone for all"},
		{"list as a key", "--config=complex-key.yaml", "config: complex-key.yaml: line 1: want the name of an option as the key\ncomplex-key.yaml:straem (line 2): unknown key: did you mean stream?"},
		{"all and one", "--namespaces=*,a", "namespaces: \"*,a\" from --namespaces: \"*\" is not the name of a namespace; want names of namespaces separated by commas, or * alone for all"},
		{"no namespace", "--namespaces=", "namespaces: \"\" from --namespaces: \"\" is not the name of a namespace; want names of namespaces separated by commas, or * alone for all"},
		{"mixed URLs", "--nats-url=ws://a,nats://b", "nats-url: \"ws://a,nats://b\" from --nats-url: websocket and plain URLs do not mix; want URLs like nats://host:4222 separated by commas (nats or tls, or all of them ws or wss)"},
		{"file below a file", "--nats-creds=blocked/x", "nats-creds: \"blocked/x\" from --nats-creds: not a directory; want a readable NATS credentials file"},
		{"empty folder name", "--nats-embedded-dir=", "nats-embedded-dir: \"\" from --nats-embedded-dir: want the path of a folder"},
		{"too large", "--stream-max-bytes=100Ei", "stream-max-bytes: \"100Ei\" from --stream-max-bytes: want a number of bytes of at least 0, for example 1048576 or 64Mi"},
		{"too short", "--stream-max-age=1ms", "stream-max-age: \"1ms\" from --stream-max-age: want 0 or a duration of at least 1s, for example 10s or 1h30m"},
		{"embedded and elsewhere", "--nats-embedded --nats-url=nats://a", "nats-url (from --nats-url) contradicts nats-embedded (from --nats-embedded): the embedded server is the only one this process connects to, without credentials; leave one of the two out"},
		{"embedded and elsewhere in a file", "--config=embedded.yaml", "nats-url (from embedded.yaml:nats-url (line 1)) contradicts nats-embedded (from embedded.yaml:nats-embedded (line 2)): the embedded server is the only one this process connects to, without credentials; leave one of the two out"},
		{"embedded with credentials", "--nats-embedded --nats-creds=user.creds", "nats-creds (from --nats-creds) contradicts nats-embedded (from --nats-embedded): the embedded server is the only one this process connects to, without credentials; leave one of the two out"},
		{"embedded with replicas", "--nats-embedded --stream-replicas=3", "stream-replicas (from --stream-replicas) contradicts nats-embedded (from --nats-embedded): a single server cannot keep 3 replicas; want stream-replicas 1"},
		{"user and credentials", "--nats-creds=user.creds --nats-user=u --nats-password-file=secret", "nats-creds (from --nats-creds) contradicts nats-user (from --nats-user): a connection has one identity; leave one of the two out"},
		{"token and user", "--nats-token-file=secret --nats-user=u --nats-password-file=secret", "nats-user (from --nats-user) contradicts nats-token-file (from --nats-token-file): a connection has one identity; leave one of the two out"},
		{"user here and in the URL", "--nats-url=nats://u:p@host --nats-user=u --nats-password-file=secret", "nats-user (from --nats-user) contradicts nats-url (from --nats-url): a connection has one identity; leave one of the two out"},
		{"three identities", "--nats-url=a,u:p@host --nats-nkey=user.nk --nats-token-file=secret", "nats-nkey (from --nats-nkey) contradicts nats-token-file (from --nats-token-file): a connection has one identity; leave one of the two out\nnats-nkey (from --nats-nkey) contradicts nats-url (from --nats-url): a connection has one identity; leave one of the two out"},
		{"user without password", "--nats-user=u", "nats-user (from --nats-user) needs nats-password-file: a user goes with its password; set both or none"},
		{"password without user", "--nats-password-file=secret", "nats-password-file (from --nats-password-file) needs nats-user: a user goes with its password; set both or none"},
		{"user with a bad password", "--nats-user=u --nats-password-file=blocked", "nats-password-file: \"blocked\" from --nats-password-file: it is empty; want a readable file with one line"},
		{"token of two lines", "--nats-token-file=user.creds", "nats-token-file: \"user.creds\" from --nats-token-file: it holds more than one line; want a readable file with one line"},
		{"embedded with a token", "--nats-embedded --nats-token-file=secret", "nats-token-file (from --nats-token-file) contradicts nats-embedded (from --nats-embedded): the embedded server is the only one this process connects to, without credentials; leave one of the two out"},
		{"embedded with a domain", "--nats-embedded --nats-jetstream-domain=hub", "nats-jetstream-domain (from --nats-jetstream-domain) contradicts nats-embedded (from --nats-embedded): the embedded server is the only one this process connects to, without credentials; leave one of the two out"},
		{"two identities", "--nats-creds=user.creds --nats-nkey=user.nk", "nats-creds (from --nats-creds) contradicts nats-nkey (from --nats-nkey): a connection has one identity; leave one of the two out"},
		{"certificate without key", "--nats-tls-cert=a.crt", "nats-tls-cert (from --nats-tls-cert) needs nats-tls-key: a client certificate goes with its key; set both or none"},
		{"key without certificate", "--nats-tls-key=a.key", "nats-tls-key (from --nats-tls-key) needs nats-tls-cert: a client certificate goes with its key; set both or none"},
		{"bad key is reported once", "--nats-tls-cert=a.crt --nats-tls-key=blocked", "nats-tls-key: \"blocked\" from --nats-tls-key: it holds no PEM block of type PRIVATE KEY; want a readable PEM file with a private key"},
		{"another certificate's key", "--nats-tls-cert=a.crt --nats-tls-key=b.key", "nats-tls-cert (from --nats-tls-cert) contradicts nats-tls-key (from --nats-tls-key): private key does not match public key; want a certificate and its own key"},
		{"stream of the bucket", "--stream=KV_flyte-apps", "stream (from --stream): the bucket \"flyte-apps\" is kept in a stream that is named \"KV_flyte-apps\" itself; want another name for the event stream"},
		{"bucket of the stream", "--stream=KV_a --bucket=a", "stream (from --stream) and bucket (from --bucket): the bucket \"a\" is kept in a stream that is named \"KV_a\" itself; want another name for the event stream"},
		{"deploy where nobody looks", "--namespaces=a,b --deploy-namespace=c", "deploy-namespace (from --deploy-namespace) contradicts namespaces (from --namespaces): the bridge would not see what it deploys to \"c\"; want one of a, b"},
		{"deploy outside of the default", "--deploy-namespace=c", "deploy-namespace (from --deploy-namespace) contradicts namespaces (by default): the bridge would not see what it deploys to \"c\"; want one of flyte"},
		{"deploy and bad namespaces", "--deploy-namespace=c --namespaces=C", "namespaces: \"C\" from --namespaces: \"C\" is not the name of a namespace; want names of namespaces separated by commas, or * alone for all"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := load(Serve, strings.Fields(test.args), nil)
			if err == nil {
				t.Fatal("got no error")
			}
			if diff := cmp.Diff(err.Error(), test.want); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
}

func TestAllowed(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	configtest.WriteCreds(t, dir, configtest.NewSeed(t))
	configtest.WriteFile(t, dir, "secret", "hunter2\n")
	configtest.WriteKeyPair(t, dir, "a")
	configtest.WriteFile(t, dir, "comment.yaml", "# nothing yet\n")
	configtest.WriteFile(t, dir, "null.yaml", "---\n")
	configtest.WriteFile(t, dir, "quoted.yaml", "stream-replicas: '3'\nleader-elect: \"true\"\nbase-domain: 1234\n")
	for _, args := range []string{
		"--nats-creds=user.creds --nats-tls-ca=a.crt --nats-tls-cert=a.crt --nats-tls-key=a.key",
		"--nats-user=u --nats-password-file=secret --nats-url=nats://host/@", "--nats-token-file=secret", "--nats-token-file= --nats-user= --nats-creds=user.creds",
		"--nats-jetstream-domain=hub-1", "--nats-jetstream-domain=",
		"--nats-url=nats://user:p%40ss@host:4222,tls://[::1]:4223",
		"--nats-url=host:4222",
		"--nats-url=wss://host/path",
		"--nats-embedded --stream-replicas=1 --nats-creds=",
		"--nats-embedded=false --nats-url=nats://a",
		"--config=comment.yaml", "--config=null.yaml", "--config=quoted.yaml",
		"--base-domain=apps.exämple.com --scheme=HTTP --ingress-port=0",
		"--stream-max-age=0 --stream-max-bytes=0",
		"--pending-bytes=1e9", "--pending-bytes=1.5Gi",
		"--http-listen=[::1]:0", "--http-listen=:8080",
		"--deploy-namespace=b --namespaces=a,b", "--deploy-namespace=b --namespaces=*", "--deploy-namespace= --namespaces=a",
		"--default-request-timeout=0 --max-request-timeout=1s", "--default-request-timeout=2h --max-request-timeout=1h",
	} {
		if _, _, err := load(Serve, strings.Fields(args), nil); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestServiceLinksOfKubernetesAreIgnored(t *testing.T) {
	environ := []string{
		"APPBRIDGE_SERVICE_HOST=10.0.0.1", "APPBRIDGE_SERVICE_PORT=8080", "APPBRIDGE_SERVICE_PORT_HTTP=8080", "APPBRIDGE_PORT=tcp://10.0.0.1:8080",
		"APPBRIDGE_PORT_8080_TCP=tcp://10.0.0.1:8080", "APPBRIDGE_PORT_8080_TCP_PROTO=tcp", "APPBRIDGE_PORT_8080_TCP_PORT=8080", "APPBRIDGE_PORT_8080_TCP_ADDR=10.0.0.1",
		"APPBRIDGE_INGRESS_SERVICE_HOST=10.0.0.2", "APPBRIDGE_INGRESS_PORT=tcp://10.0.0.2:80",
	}
	cfg, _, err := load(Serve, nil, environ)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.IngressPort, 0; got != want {
		t.Errorf("got ingress port %d, want %d", got, want)
	}
	if cfg, _, err = load(Serve, nil, []string{"APPBRIDGE_INGRESS_SERVICE_HOST=10.0.0.2", "APPBRIDGE_INGRESS_PORT=81"}); err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.IngressPort, 81; got != want {
		t.Errorf("got ingress port %d, want %d", got, want)
	}
	if _, _, err = load(Serve, nil, []string{"APPBRIDGE_PORT=tcp://10.0.0.1:8080"}); err == nil {
		t.Error("got no error for a variable that looks like a Service's although there is none")
	}
}

func TestSuggestions(t *testing.T) {
	known := maps.Keys(optionsBy(option.flag, Serve.options(new(Config))))
	for written, want := range map[string]string{
		"--nats-ulr": ": did you mean --nats-url?", "--namespace": ": did you mean --namespaces?", "--streams": ": did you mean --stream?",
		"--nats-emb": ": did you mean --nats-embedded?", "--cluster": ": did you mean --cluster-name?",
		"--something-else": "", "--": "", "--nats": "",
	} {
		if got := didYouMean(written, known); got != want {
			t.Errorf("%s: got %q, want %q", written, got, want)
		}
	}
}

// FuzzConfigFile: whatever stands in a file, reading it ends in a
// configuration or in problems of one line each.
func FuzzConfigFile(f *testing.F) {
	for _, seed := range []string{"", "stream: A", "a: &x [*x]", "? [a]\n: b", "- a", "<<: {stream: A}", "stream: !!binary aGk=", "namespaces: [[a]]", "\xff", "---\n---\n", "stream: |\n  a\n  b\n", "*a : b", "&a stream: *a"} {
		f.Add(seed)
	}
	path := f.TempDir() + "/fuzz.yaml"
	f.Fuzz(func(t *testing.T, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := load(Serve, []string{"--config", path}, nil)
		if err == nil {
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if strings.TrimSpace(line) == "" {
				t.Errorf("got an empty line in %q", err)
			}
		}
	})
}
