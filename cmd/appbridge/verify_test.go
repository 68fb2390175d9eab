package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// fakeKubernetes is an API server without a single Knative Service.
func fakeKubernetes(t *testing.T) string {
	t.Helper()
	answers := map[string]string{
		"/api/v1/namespaces/flyte":                                `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"flyte","uid":"uid-2"}}`,
		"/api/v1/namespaces/kube-system":                          `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"uid-1"}}`,
		"/apis/serving.knative.dev/v1/namespaces/flyte/services":  `{"kind":"ServiceList","apiVersion":"serving.knative.dev/v1","metadata":{"resourceVersion":"100"},"items":[]}`,
		"/apis/serving.knative.dev/v1/namespaces/flyte/revisions": `{"kind":"RevisionList","apiVersion":"serving.knative.dev/v1","metadata":{"resourceVersion":"100"},"items":[]}`,
	}
	for _, kind := range []string{"services", "revisions"} {
		path := "/apis/serving.knative.dev/v1/namespaces/%s/" + kind
		answers[fmt.Sprintf(path, "secret")] = answers[fmt.Sprintf(path, "flyte")]
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		status := map[string]int{"/api/v1/namespaces/flite": http.StatusNotFound, "/api/v1/namespaces/secret": http.StatusForbidden}[r.URL.Path]
		if status != 0 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			reason := map[int]string{http.StatusNotFound: "NotFound", http.StatusForbidden: "Forbidden"}[status]
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, status)
			return
		}
		if !ok || r.Method != http.MethodGet {
			t.Errorf("unexpected request %s %s", r.Method, r.URL)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// runVerify runs `appbridge verify` in an environment of its own.
func runVerify(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	isolate(t)
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"verify"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestVerifyUsage(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := configtest.WriteKubeconfig(t, dir, "https://127.0.0.1:1")
	embedded := configtest.WriteFile(t, dir, "embedded.yaml", "nats-embedded: true\nnats-embedded-listen: 127.0.0.1:4333\n")
	unknown := configtest.WriteFile(t, dir, "unknown.yaml", "confirm_fr: 1s\n")
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"bad value", []string{"--confirm-for", "soon"}, []string{"confirm-for: \"soon\" from --confirm-for: want 0 or a duration of at least 1ms"}},
		{"unknown flag", []string{"--confirm-fr=1s"}, []string{"--confirm-fr: unknown flag: did you mean --confirm-for?"}},
		{"a flag of serve", []string{"--accept-reset"}, []string{"--accept-reset: a flag of another command"}},
		{"unknown key", []string{"--config", unknown}, []string{"unknown.yaml:confirm_fr (line 1): unknown key: did you mean confirm-for?"}},
		{"embedded server", []string{"--config", embedded}, []string{
			"appbridge: nats-embedded (from " + embedded + ":nats-embedded (line 1)): verify runs no server: want nats-url with the address that the embedded server of the bridge listens on, for example --nats-url nats://127.0.0.1:4333\n",
		}},
		{"a repair by variable", nil, []string{"appbridge: APPBRIDGE_REPAIR: a variable cannot set it: want --repair on the command line\n"}},
		{"several", []string{"--timeout=0", "--encoding=xml", "--config", embedded}, []string{"timeout: \"0\"", "encoding: \"xml\"", "nats-embedded (from "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			isolate(t)
			if test.name == "a repair by variable" {
				t.Setenv("APPBRIDGE_REPAIR", "true")
			}
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{"verify", "--kubeconfig", kubeconfig}, test.args...), &out, &errs)
			stdout, stderr := out.String(), errs.String()
			if code != exitUsage || stdout != "" {
				t.Errorf("got exit code %d and stdout %q", code, stdout)
			}
			for _, want := range append(test.want, "the configuration is wrong; `appbridge verify --help` lists every option\n") {
				if !strings.Contains(stderr, want) {
					t.Errorf("got stderr\n%s\nwant %q in it", stderr, want)
				}
			}
		})
	}
}

func TestVerifyHelp(t *testing.T) {
	code, stdout, stderr := runVerify(t, "--help")
	if code != exitOK || stderr != "" {
		t.Errorf("got exit code %d and stderr %q", code, stderr)
	}
	for _, want := range []string{"Usage:\n  appbridge verify [flags]", "--confirm-for duration\n", "--json\n", "--kubeconfig file\n", "(default warn)", "(default 5s)"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the help text lacks %q:\n%s", want, stdout)
		}
	}
	for _, bad := range []string{"--flush-timeout", "--http-listen", "--accept-reset", "--nats-embedded-dir"} {
		if strings.Contains(stdout, bad) {
			t.Errorf("the help text has %s", bad)
		}
	}
	if _, stdout, _ := runVerify(t, "help"); strings.Contains(stdout, "Usage") {
		t.Error("an argument counts as a request for help")
	}
	var serve strings.Builder
	config.PrintOptions(&serve, config.Serve)
	if strings.Contains(serve.String(), "--confirm-for") {
		t.Error("the help text of serve has --confirm-for")
	}
}

func TestVerifyFailures(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := configtest.WriteKubeconfig(t, dir, "https://127.0.0.1:1")
	nobody := "nats://" + unusedAddress(t)
	t.Run("Kubernetes", func(t *testing.T) {
		code, stdout, stderr := runVerify(t, "--kubeconfig", kubeconfig, "--nats-url", nobody, "--timeout", "300ms")
		if code != exitFailure || stdout != "" || !strings.Contains(stderr, "appbridge: the comparison failed: Kubernetes did not answer within 300ms: ") {
			t.Errorf("got exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	})
	t.Run("NATS", func(t *testing.T) {
		kubeconfig := configtest.WriteKubeconfig(t, t.TempDir(), fakeKubernetes(t))
		code, stdout, stderr := runVerify(t, "--kubeconfig", kubeconfig, "--nats-url", nobody, "--timeout", "4s", "--json") // Kubernetes has to answer within that
		if code != exitFailure || !strings.Contains(stderr, "appbridge: the comparison failed: NATS did not answer within 4s: ") {
			t.Errorf("got exit code %d, stderr %q", code, stderr)
		}
		var report struct {
			Differences, Notes, Repairs []any
			Error                       string
		}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatal(err)
		}
		if report.Differences == nil || report.Notes == nil || report.Repairs == nil || !strings.HasPrefix(report.Error, "NATS did not answer within 4s: ") {
			t.Errorf("got %s", stdout)
		}
	})
}

// TestVerifyCannotWrite: a report that does not arrive is no success.
func TestVerifyCannotWrite(t *testing.T) {
	local, err := startEmbedded(t.Context(), "127.0.0.1:0", filepath.Join(t.TempDir(), "data"), 0, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer local.stop()
	kubeconfig := configtest.WriteKubeconfig(t, t.TempDir(), fakeKubernetes(t))
	isolate(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	for _, form := range []string{"--json", "--json=false"} {
		for what, out := range map[string]io.Writer{"no space left on device": full, "broken pipe": &goneReader{}} {
			makeEmpty(t, local.url)
			var stderr bytes.Buffer
			code := run(t.Context(), []string{"verify", form, "--confirm-for=0", "--kubeconfig", kubeconfig, "--nats-url", local.url}, out, &stderr)
			if got := stderr.String(); code != exitFailure || !strings.HasPrefix(got, "appbridge: cannot write the report: ") || !strings.HasSuffix(got, what+"\n") {
				t.Errorf("%s, %s: got exit code %d and stderr %q", form, what, code, got)
			}
		}
	}
}

// makeEmpty makes the stream and the bucket of a bridge of the fake cluster.
func makeEmpty(t *testing.T, url string) {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	metadata := map[string]string{subjects.MetadataClusterUID: "uid-1", subjects.MetadataClusterName: "default", subjects.MetadataStreamID: "id"}
	if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{subjects.DefaultPrefix + ".events.>"}, AllowDirect: true, Metadata: metadata,
	}); err != nil {
		t.Fatal(err)
	}
	metadata[subjects.MetadataStream] = subjects.DefaultStream
	if _, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket, Metadata: metadata}); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyNamespaceAndClusterName(t *testing.T) {
	local, err := startEmbedded(t.Context(), "127.0.0.1:0", filepath.Join(t.TempDir(), "data"), 0, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer local.stop()
	makeEmpty(t, local.url)
	kubeconfig := configtest.WriteKubeconfig(t, t.TempDir(), fakeKubernetes(t))
	const renamed = "  it names the cluster \"default\", --cluster-name is \"other\": a bridge with this name would change ce-source\n"
	const two = "stream" + renamed + "bucket" + renamed + "2 differences in 0 apps, stream at sequence 0\n"
	for _, test := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"right", nil, exitOK, "no difference in 0 apps, stream at sequence 0\n", ""},
		{"no such namespace", []string{"--namespaces", "flyte,flite"}, exitFailure, "", "appbridge: the comparison failed: namespaces \"flite\": there is no such namespace\n"},
		{
			"a namespace that may not be read",
			[]string{"--namespaces", "secret"},
			exitOK,
			"note: nothing is in namespace secret, and whether it exists is not known: the right get on it is missing\nno difference in 0 apps, stream at sequence 0\n", "",
		},
		{"another cluster name", []string{"--cluster-name", "other"}, exitFailure, two, ""},
		{
			"a repair under another cluster name",
			[]string{"--cluster-name", "other", "--repair"},
			exitFailure, two,
			"appbridge: the comparison failed: nothing is repaired, since this is for an operator to decide: stream" + renamed,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := runVerify(t, append(test.args, "--confirm-for=0", "--kubeconfig", kubeconfig, "--nats-url", local.url)...)
			if code != test.code || stdout != test.stdout || stderr != test.stderr {
				t.Errorf("got exit code %d, stdout %q, stderr %q, want %d, %q, %q", code, stdout, stderr, test.code, test.stdout, test.stderr)
			}
		})
	}
}

// unusedAddress is one that nobody listens on.
func unusedAddress(t *testing.T) string {
	t.Helper()
	address, err := network.FreeAddress("")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// TestVerifyWithServesFile: the file of a bridge serves as it is, and nothing
// is made or changed.
func TestVerifyWithServesFile(t *testing.T) {
	log := zaptest.NewLogger(t)
	local, err := startEmbedded(t.Context(), "127.0.0.1:0", filepath.Join(t.TempDir(), "data"), 0, log)
	if err != nil {
		t.Fatal(err)
	}
	defer local.stop()
	dir := t.TempDir()
	file := configtest.WriteFile(t, dir, "bridge.yaml", strings.Join([]string{
		"kubeconfig: " + configtest.WriteKubeconfig(t, dir, fakeKubernetes(t)), "nats-embedded: true", "leader-elect: true", "accept-reset: true",
		"pending-bytes: 1Gi", "http-listen: 127.0.0.1:1", "stream: S", "log-level: warn",
	}, "\n"))
	args := []string{"--config", file, "--nats-url", local.url, "--confirm-for=0"}
	for range 2 {
		code, stdout, stderr := runVerify(t, args...)
		want := "stream  there is no stream S\nbucket  there is no bucket flyte-apps\n2 differences in 0 apps, stream at sequence 0\n"
		if code != exitFailure || stdout != want || stderr != "" {
			t.Errorf("got exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
	code, stdout, _ := runVerify(t, append(args, "--json")...)
	want := `{"differences":[{"kind":"stream_missing","side":"stream","detail":"there is no stream S"},` +
		`{"kind":"bucket_missing","side":"bucket","detail":"there is no bucket flyte-apps"}],"notes":[],"apps":0,"sequence":0,"repaired":0,"repairs":[]}` + "\n"
	if code != exitFailure || stdout != want {
		t.Errorf("got exit code %d and %s, want %s", code, stdout, want)
	}
}

func TestPrintReport(t *testing.T) {
	one := &audit.AppName{Project: "vision", Domain: "development", Name: "one"}
	differs := audit.Difference{App: one, Key: "vision.development.one", Kind: plan.MissingEntry, Side: plan.SideBucket, Detail: "missing <here>", StreamSequence: 17}
	note := audit.Note{App: one, Key: "vision.development.one", Kind: audit.NoteChanging, Detail: "changing"}
	failed := errors.New("NATS did not answer")
	for _, test := range []struct {
		name   string
		report audit.Report
		err    error
		text   string
	}{
		{"nothing", audit.Report{Apps: 3, Sequence: 17}, nil, "no difference in 3 apps, stream at sequence 17\n"},
		{
			"one",
			audit.Report{Apps: 1, Sequence: 17, Differences: []audit.Difference{differs}, Notes: []audit.Note{note}},
			nil,
			"vision/development/one  missing <here>\nnote: vision/development/one  changing\n1 difference in 1 app, stream at sequence 17\n",
		},
		{"repaired", audit.Report{Apps: 3, Sequence: 18, Repaired: 2}, nil, "no difference in 3 apps, stream at sequence 18, 2 repairs\n"},
		{"failed", audit.Report{}, failed, ""},
		{"failed repair", audit.Report{Apps: 1, Differences: []audit.Difference{differs}}, failed, "vision/development/one  missing <here>\n1 difference in 1 app, stream at sequence 0\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var text bytes.Buffer
			printReport(&text, &test.report, test.err)
			if diff := cmp.Diff(text.String(), test.text); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
	var out bytes.Buffer
	if err := printJSON(&out, &audit.Report{Differences: []audit.Difference{differs}, Notes: []audit.Note{}, Repairs: []audit.Repair{}}, failed); err != nil {
		t.Fatal(err)
	}
	want := `{"differences":[{"app":{"project":"vision","domain":"development","name":"one"},"key":"vision.development.one","kind":"missing_entry","side":"bucket",` +
		`"detail":"missing <here>","streamSequence":17}],"notes":[],"apps":0,"sequence":0,"repaired":0,"repairs":[],"error":"NATS did not answer"}` + "\n"
	if diff := cmp.Diff(out.String(), want); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}
