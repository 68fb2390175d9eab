package docs_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

// configFaults are causes of exit code 2.
func configFaults() []fault {
	const (
		value     = "Wrong value"
		unknown   = "Unknown option"
		file      = "Wrong configuration file"
		contrary  = "Options that contradict each other"
		noCluster = "No cluster"
		account   = "Apps would run as appbridge"
	)
	keys := func(name, content string) fault {
		return fault{
			name: name, section: file, code: 2, files: map[string]string{name + ".yaml": content},
			args: []string{"serve", "--config", name + ".yaml"},
		}
	}
	faults := []fault{
		{
			name: "values", section: value, code: 2, repairs: true, env: []string{"APPBRIDGE_STREAM_MAX_AGE=1 day"},
			files: map[string]string{"appbridge.yaml": "stream: A\n"},
			args: []string{
				"serve", "--encoding", "xml", "--nats-creds", "missing.creds", "--nats-tls-ca", "appbridge.yaml",
				"--allowed-references", "secret/{project}-*", "--stream",
			},
		},
		{
			name: "names", section: unknown, code: 2, env: []string{"APPBRIDGE_STREEM=x"},
			args: []string{"serve", "--nats-ulr", "x", "--tail", "3", "---x", "nats://h:4222"},
		},
		{name: "a variable", section: unknown, code: 2, env: []string{"APPBRIDGE_REPAIR=true"}, args: []string{"verify"}},
		{name: "command", section: unknown, code: 2, args: []string{"srve"}},
		{name: "flag first", section: unknown, code: 2, args: []string{"--nats-embedded", "serve"}},
		{name: "no file", section: file, code: 2, args: []string{"serve", "--config", "missing.yaml"}},
		keys("list", "- a\n"),
		keys("two", "stream: a\n---\nstream: b\n"),
		keys("keys", "streem: a\nstream: a\nstream: b\n"),
		{
			name: "kinds", section: file, code: 2, args: []string{"serve", "--config", "keys.yaml"},
			files: map[string]string{"keys.yaml": "[a]: b\nstream: [a]\n"},
		},
		{
			name: "mapping", section: file, code: 2, args: []string{"serve", "--config", "keys.yaml"},
			files: map[string]string{"keys.yaml": "cluster-name: a\nstream: {a: b}\n"},
		},
		{
			name: "item", section: file, code: 2, args: []string{"serve", "--config", "keys.yaml"},
			files: map[string]string{"keys.yaml": "cluster-name: a\nnamespaces:\n- [a]\n"},
		},
		{name: "embedded", section: contrary, code: 2, args: []string{"serve", "--nats-embedded", "--nats-url", "nats://h", "--stream-replicas", "3"}},
		{
			name: "identities", section: contrary, code: 2, args: []string{"serve", "--nats-creds", "user.creds", "--nats-nkey", "user.nk"},
			cause: func(t *testing.T, s *site) {
				seed := configtest.NewSeed(t)
				configtest.WriteCreds(t, s.dir, seed)
				s.write(t, "user.nk", seed)
			},
		},
		{
			name: "half a pair", section: contrary, code: 2, args: []string{"serve", "--nats-tls-cert", "a.crt"},
			cause: func(t *testing.T, s *site) { configtest.WriteKeyPair(t, s.dir, "a") },
		},
		{
			name: "another key", section: contrary, code: 2, args: []string{"serve", "--nats-tls-cert", "a.crt", "--nats-tls-key", "b.key"},
			cause: func(t *testing.T, s *site) {
				configtest.WriteKeyPair(t, s.dir, "a")
				configtest.WriteKeyPair(t, s.dir, "b")
			},
		},
		{name: "namespace", section: contrary, code: 2, args: []string{"serve", "--deploy-namespace", "other"}},
		{name: "names of streams", section: contrary, code: 2, args: []string{"serve", "--stream", "KV_flyte-apps"}},
		{name: "websocket", section: contrary, code: 2, args: []string{"serve", "--nats-url", "ws://h:1,nats://h:2"}},
		{name: "no server", section: contrary, code: 2, env: []string{"APPBRIDGE_NATS_EMBEDDED=true"}, args: []string{"verify"}},
		{
			name: "beginnings", section: contrary, code: 2,
			args: []string{"logs", "--since", "10m", "--since-time", "2026-11-21T08:51:07Z", "shop/production/search"},
		},
		{
			name: "none", section: noCluster, code: 2, env: []string{"KUBECONFIG=none"}, repairs: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				delete(s.options, "kubeconfig")
			},
		},
		{
			name: "empty", section: noCluster, code: 2, args: []string{"serve", "--kubeconfig", "empty.kubeconfig"},
			files: map[string]string{"empty.kubeconfig": "kind: Config\napiVersion: v1\n"},
		},
		{
			name: "lease", section: "No namespace for the Lease", code: 2, args: []string{"serve", "--leader-elect"}, repairs: true,
			cause: func(t *testing.T, s *site) { natsOf(t, s, nil) },
		},
		{name: "by default", section: account, code: 2, args: []string{"serve", "--enable-writes"}, cause: inAPod},
		{name: "named", section: account, code: 2, args: []string{"serve", "--enable-writes", "--default-service-account", "default"}, cause: inAPod},
	}
	for i, f := range faults {
		faults[i].alone = !f.repairs || f.section == value
	}
	return append(faults, addressFaults()...)
}

// inAPod has the program use the token of the service account default of the namespace flyte.
func inAPod(t *testing.T, s *site) {
	t.Helper()
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"system:serviceaccount:flyte:default"}`))
	path := filepath.Join(s.dir, "pod.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "e30." + claims + ".c2ln"}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "KUBECONFIG="+path)
}

// addressFaults are causes of exit code 1 before anything is connected.
func addressFaults() []fault {
	const (
		taken  = "Address in use"
		folder = "Folder of the embedded server"
	)
	return []fault{
		{
			name: "http", section: taken, code: 1, repairs: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				s.options["http-listen"] = configtest.OccupiedPort(t)
			},
		},
		{
			name: "nats", section: taken, code: 1,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				delete(s.options, "nats-url")
				s.options["nats-embedded"], s.options["nats-embedded-dir"] = "true", filepath.Join(s.dir, "js")
				s.options["nats-embedded-listen"] = configtest.OccupiedPort(t)
			},
		},
		{
			name: "two", section: folder, code: 1,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				delete(s.options, "nats-url")
				s.options["nats-embedded"], s.options["nats-embedded-dir"] = "true", filepath.Join(s.dir, "js")
				s.options["nats-embedded-listen"] = "127.0.0.1:0"
				other := s.command(t, fault{})
				other.untilReady()
			},
		},
		{
			name: "a file", section: folder, code: 1,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				delete(s.options, "nats-url")
				s.options["nats-embedded"], s.options["nats-embedded-dir"] = "true", filepath.Join(s.dir, "file")
				s.options["nats-embedded-listen"] = "127.0.0.1:0"
				if err := os.WriteFile(filepath.Join(s.dir, "file"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			},
		},
	}
}
