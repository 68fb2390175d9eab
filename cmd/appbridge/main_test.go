package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// asProgram makes the test binary do something else than test, so that tests
// can run it as a process of its own: be the program, log, or verify certificates.
const (
	asProgram = "RUN_TEST_BINARY_AS"
	beProgram = "appbridge"
	beLogger  = "logger"
	beVerify  = "verifier"
)

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case beProgram:
		main()
	case beLogger:
		logWithLibraries()
		return
	case beVerify:
		verifyCertificates(os.Args[1:])
		return
	}
	if signal.Ignored(syscall.SIGHUP) { // under nohup. The programs that tests start are to get it
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	goleak.VerifyTestMain(m)
}

// verifyCertificates verifies the certificates in files, as TLS does when no CA file is configured,
// and prints the result of each.
func verifyCertificates(paths []string) {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			printf(os.Stdout, "%v\n", err)
			continue
		}
		block, _ := pem.Decode(text)
		if block == nil {
			printf(os.Stdout, "%s: no certificate\n", path)
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err == nil {
			_, err = certificate.Verify(x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		}
		printf(os.Stdout, "%v\n", err)
	}
}

// waitFor polls until ok.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	suite.Eventually(t, suite.Patience, what, func() error {
		if !ok() {
			return errors.New("waited in vain")
		}
		return nil
	})
}

// output collects what a running program writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func TestRun(t *testing.T) {
	kubeconfig := configtest.WriteKubeconfig(t, t.TempDir(), "https://127.0.0.1:1")
	broken := configtest.WriteFile(t, t.TempDir(), "broken.yaml", "{ this is not: a kubeconfig")
	tests := []struct {
		name        string
		args        []string
		env         map[string]string
		code        int
		stdout      []string
		stderr      []string
		stderrEmpty bool
	}{
		{name: "nothing", code: 2, stderr: []string{"Usage:\n  appbridge [command]", "serve", "version", "help"}},
		{name: "help", args: []string{"help"}, stdout: []string{"Usage:\n  appbridge [command]"}, stderrEmpty: true},
		{name: "-h", args: []string{"-h"}, stdout: []string{"Usage:\n  appbridge [command]"}, stderrEmpty: true},
		{name: "--help", args: []string{"--help"}, stdout: []string{"Usage:\n  appbridge [command]"}, stderrEmpty: true},
		{name: "help serve", args: []string{"help", "serve"}, stdout: []string{"--nats-url urls\n", `(default "default")`, `(default "nats://127.0.0.1:4222")`, "(default json)", "(default 10s)"}, stderrEmpty: true},
		{name: "serve -h", args: []string{"serve", "-h"}, stdout: []string{"Usage:\n  appbridge serve [flags]"}, stderrEmpty: true},
		{name: "help version", args: []string{"help", "version"}, stdout: []string{"appbridge version"}, stderrEmpty: true},
		{name: "help for an unknown command", args: []string{"help", "serv"}, code: 2, stderr: []string{"unknown command \"serv\" for \"appbridge\"\n\nDid you mean this?\n\tserve\n"}},
		{name: "version", args: []string{"version"}, stdout: []string{"appbridge ", "\ncommit ", "\ngo1."}, stderrEmpty: true},
		{name: "--version", args: []string{"--version"}, stdout: []string{"appbridge "}, stderrEmpty: true},
		{name: "version with an argument", args: []string{"version", "x"}, code: 2, stderr: []string{`version takes no arguments, got "x"`}},
		{name: "unknown command", args: []string{"srve"}, code: 2, stderr: []string{"appbridge: unknown command \"srve\" for \"appbridge\"\n\nDid you mean this?\n\tserve\nRun 'appbridge --help' for usage.\n"}},
		{name: "no likely command", args: []string{"frobnicate"}, code: 2, stderr: []string{"appbridge: unknown command \"frobnicate\" for \"appbridge\"\nRun 'appbridge --help' for usage.\n"}},
		{name: "flag before the command", args: []string{"--nats-embedded", "serve"}, code: 2, stderr: []string{"a command comes first"}},
		{name: "secret for a command", args: []string{"nats://u:hunter2@host"}, code: 2, stderr: []string{`unknown command "nats://xxxxx@host"`}},
		{name: "shell completion", args: []string{"completion", "bash"}, stdout: []string{"__start_appbridge"}, stderrEmpty: true},
		{name: "completion of a command", args: []string{"__complete", "ver"}, stdout: []string{"verify\tCompare", "version\tPrint"}},
		{name: "completion of a flag", args: []string{"__complete", "serve", "--enc"}, stdout: []string{"--encoding\tform of the messages\n"}},
		{name: "completion of a value", args: []string{"__complete", "serve", "--encoding", ""}, stdout: []string{"json\nprotobuf\n"}},
		{name: "completion of a short flag", args: []string{"__complete", "logs", "-"}, stdout: []string{"--follow\t", "-f\t"}},
		{
			name: "unknown flag and variable", args: []string{"serve", "--kubeconfig", kubeconfig, "--nats-ulr", "x"},
			env: map[string]string{"APPBRIDGE_STREEM": "x"}, code: 2,
			stderr: []string{
				"appbridge: --nats-ulr: unknown flag: did you mean --nats-url?\n",
				"appbridge: APPBRIDGE_STREEM: unknown environment variable: did you mean APPBRIDGE_STREAM?\n",
				"appbridge: the configuration is wrong; `appbridge serve --help` lists every option\n",
			},
		},
		{
			name: "no cluster", args: []string{"serve"}, code: 2,
			stderr: []string{"appbridge: kubeconfig: no cluster to watch: name a kubeconfig with --kubeconfig (this is not a pod; "},
		},
		{
			name: "bad value and no cluster", args: []string{"serve", "--encoding", "xml"}, code: 2,
			stderr: []string{"appbridge: encoding: \"xml\" from --encoding: want json or protobuf\nappbridge: the configuration is wrong; "},
		},
		{
			name: "kubeconfig that does not parse", args: []string{"serve", "--kubeconfig", broken}, code: 2,
			stderr: []string{"appbridge: kubeconfig: \"" + broken + "\" from --kubeconfig: "},
		},
		{
			name: "default kubeconfig that does not parse", args: []string{"serve"}, env: map[string]string{"KUBECONFIG": broken}, code: 2,
			stderr: []string{"appbridge: kubeconfig: no cluster to watch: name a kubeconfig with --kubeconfig", "$KUBECONFIG"},
		},
		{
			name: "leader election outside of a cluster", args: []string{"serve", "--kubeconfig", kubeconfig, "--leader-elect"}, code: 2,
			stderr: []string{"appbridge: lease-namespace: not set, and this is not a pod that has one: want the name of a namespace for leader-elect (from --leader-elect)\n"},
		},
		{
			name: "occupied port", args: []string{"serve", "--kubeconfig", kubeconfig, "--log-format", "console", "--http-listen", configtest.OccupiedPort(t)}, code: 1,
			stderr: []string{"appbridge: http-listen 127.0.0.1:", "address already in use; choose another with --http-listen\n"},
		},
		{
			name: "failure in the JSON log", args: []string{"serve", "--kubeconfig", kubeconfig, "--log-format", "json", "--http-listen", configtest.OccupiedPort(t)}, code: 1,
			stderr: []string{`"level":"error"`, `"msg":"stopped by an error","error":"http-listen 127.0.0.1:`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			isolate(t)
			for name, value := range test.env {
				t.Setenv(name, value)
			}
			var stdout, stderr bytes.Buffer
			if got, want := run(t.Context(), test.args, &stdout, &stderr), test.code; got != want {
				t.Errorf("got exit code %d, want %d; stderr:\n%s", got, want, &stderr)
			}
			for _, want := range test.stdout {
				if got := stdout.String(); !strings.Contains(got, want) {
					t.Errorf("got stdout\n%s\nwant %q in it", got, want)
				}
			}
			for _, want := range test.stderr {
				if got := stderr.String(); !strings.Contains(got, want) {
					t.Errorf("got stderr\n%s\nwant %q in it", got, want)
				}
			}
			if test.stderrEmpty && stderr.Len() > 0 {
				t.Errorf("got stderr\n%s\nwant none", &stderr)
			}
			if len(test.stdout) == 0 && stdout.Len() > 0 {
				t.Errorf("got stdout\n%s\nwant none", &stdout)
			}
		})
	}
}

// isolate hides the environment of whoever runs the tests from the program.
func isolate(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "APPBRIDGE_") {
			t.Setenv(name, "") // restores it afterwards
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	// The default kubeconfig's place was fixed when the library was loaded.
	t.Setenv("KUBECONFIG", home+"/none")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
}

// isolatedEnviron is an environment for the program as a process, which gets nothing of that of
// whoever runs the tests. Unlike isolate it leaves that of the tests alone.
func isolatedEnviron(t testing.TB) []string {
	t.Helper()
	home := t.TempDir()
	return []string{asProgram + "=" + beProgram, "PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + home + "/none"}
}
