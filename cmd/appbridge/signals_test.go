package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

// TestServeAndSignals: what a process gets beside SIGTERM stops it cleanly or not at all.
func TestServeAndSignals(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		nohup  bool
		act    func(t *testing.T, process *os.Process, log io.Closer)
		unread bool // nobody reads the log at the end
	}{
		{name: "the terminal is gone", act: func(t *testing.T, process *os.Process, _ io.Closer) {
			send(t, process, syscall.SIGHUP)
		}},
		{name: "under nohup", nohup: true, act: func(t *testing.T, process *os.Process, _ io.Closer) {
			send(t, process, syscall.SIGHUP)
			send(t, process, syscall.SIGTERM)
		}},
		{name: "the reader of the log is gone", unread: true, act: func(t *testing.T, process *os.Process, log io.Closer) {
			if err := log.Close(); err != nil {
				t.Error(err)
			}
			send(t, process, syscall.SIGTERM) // it logs that it stops
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			args := []string{
				program, "serve", "--log-format=json", "--http-listen=127.0.0.1:0", "--nats-embedded", "--nats-embedded-listen=127.0.0.1:0",
				"--flush-timeout=1s", "--kubeconfig=" + configtest.WriteKubeconfig(t, dir, "https://127.0.0.1:1"),
			}
			if test.nohup {
				args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`}, args...)
			}
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Dir = dir
			cmd.Env = isolatedEnviron(t)
			log, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(log)
			for line := ""; !strings.Contains(line, "embedded NATS server listens"); {
				if line, err = lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			test.act(t, cmd.Process, log)
			rest, err := io.ReadAll(lines)
			if err != nil && !test.unread {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("got %v, want exit code 0:\n%s", err, rest)
			}
			if !test.unread && !strings.Contains(string(rest), `"msg":"stopped"`) {
				t.Errorf("no clean stop:\n%s", rest)
			}
			if test.nohup && strings.Contains(string(rest), "hangup") {
				t.Errorf("a signal that was ignored stopped it:\n%s", rest)
			}
		})
	}
}

func send(t *testing.T, process *os.Process, signal syscall.Signal) {
	t.Helper()
	if err := process.Signal(signal); err != nil {
		t.Error(err)
	}
}

// TestVerifyWhoseReaderIsGone: as a process, which the kernel would end by SIGPIPE.
func TestVerifyWhoseReaderIsGone(t *testing.T) {
	local, err := startEmbedded(t.Context(), "127.0.0.1:0", t.TempDir(), 0, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer local.stop()
	makeEmpty(t, local.url)
	isolate(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "verify", "--confirm-for=0", "--nats-url", local.url,
		"--kubeconfig", configtest.WriteKubeconfig(t, t.TempDir(), fakeKubernetes(t)))
	cmd.Env = append(os.Environ(), asProgram+"="+beProgram)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = writer
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	err = cmd.Run()
	if closeErr := writer.Close(); closeErr != nil {
		t.Error(closeErr)
	}
	if code := cmd.ProcessState.ExitCode(); code != exitFailure || stderr.String() != "appbridge: cannot write the report: write /dev/stdout: broken pipe\n" {
		t.Errorf("got %v, stderr %q", err, &stderr)
	}
}

// TestVerifyInterrupted: it is neither a difference nor a failure.
func TestVerifyInterrupted(t *testing.T) {
	isolate(t)
	kubeconfig := configtest.WriteKubeconfig(t, t.TempDir(), fakeKubernetes(t))
	for _, form := range []string{"--json", "--json=false"} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var stdout, stderr bytes.Buffer
		code := run(ctx, []string{"verify", form, "--kubeconfig", kubeconfig, "--nats-url", "nats://" + unusedAddress(t), "--log-level=error"}, &stdout, &stderr)
		if code != exitInterrupted || stderr.String() != "appbridge: the comparison failed: interrupted\n" {
			t.Errorf("%s: got exit code %d and stderr %q", form, code, &stderr)
		}
		var report struct{ Error string }
		if form != "--json" {
			continue
		}
		if err := json.Unmarshal(stdout.Bytes(), &report); err != nil || report.Error != "interrupted" {
			t.Errorf("got %v and the error %q", err, report.Error)
		}
	}
}
