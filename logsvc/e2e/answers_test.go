package e2e_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// What cannot be served is answered with one line that says why, and ends at
// once: nobody waits for the client's timeout.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	id, service := w.app(t)
	other, otherService := w.app(t)
	w.pod(t, service, service+"-1").Write("hello")
	w.pod(t, otherService, otherService+"-1").Write("secret")
	upper := id
	upper.Name = strings.ToUpper(id.Name) // another app, of the same Knative Service's name
	for _, c := range []struct {
		app        subjects.AppID
		body, want string
	}{
		{subjects.AppID{Project: "shop", Domain: "production", Name: "nothing"}, "", "no app shop/production/nothing"},
		{upper, "", "no app " + upper.String()},
		{subjects.AppID{Project: "shop", Domain: "production", Name: "späti/.."}, "", "no app "},
		{id, `{"replica": "nothing"}`, `replica "nothing": not a replica of app ` + id.String()},
		{id, `{"replica": "` + otherService + `-1"}`, `replica "` + otherService + `-1": not a replica of app ` + id.String()},
		{id, `{"container": "sidecar"}`, `container "sidecar": `},
		{id, `{"previous": true}`, "previous: "},
		{id, `{"tail": -5}`, "tail: -5: want a whole number of lines from 0 on"},
		{id, `{"since": "yesterday"}`, `since: "yesterday": want a duration`},
		{id, `{"colour": "red"}`, `"colour": unknown option`},
	} {
		for _, op := range []subjects.LogOp{subjects.LogTail, subjects.LogGet, subjects.LogOpen} {
			run := w.Start(t, fmt.Sprintf(`nats req --raw --replies=0 --timeout=1h %s '%s'`, subjectOf(t, op, c.app), c.body))
			// A busy API server makes a reader wait, which a note says.
			got := strings.TrimSpace(strings.TrimPrefix(run.Wait(), subjects.LogNotePrefix+"waiting for Kubernetes\n"))
			if !strings.Contains(got, c.want) || strings.Contains(got, "\n") || strings.Contains(got, "hello") || strings.Contains(got, "secret") {
				t.Errorf("%s %s %s: got %q, want %q", op, c.app, c.body, got, c.want)
			}
		}
	}
	if got := w.Start(t, "appbridge logs "+other.String()).Wait(); got != "secret\n" {
		t.Errorf("got %q", got)
	}
	for line, want := range map[string]string{
		"appbridge logs shop/production/nothing":       "no app shop/production/nothing",
		"appbridge logs shop/production":               `"shop/production": not an app`,
		"appbridge logs " + id.String() + " --tail -1": "tail: ",
	} {
		run := w.Start(t, line+"; echo code $?")
		got := run.Wait()
		if code := "code 1\n"; got != code && got != "code 2\n" || !strings.Contains(run.Stderr(), want) {
			t.Errorf("%s: got %q and %q, want %q", line, got, run.Stderr(), want)
		}
	}
}

// Every replica of the bridge serves logs, the one that leads and those that
// stand by, and the stock client sees them.
func TestReplicas(t *testing.T) {
	t.Parallel()
	lease := []string{"--leader-elect", "--lease-namespace", testenv.DefaultNamespace}
	w := ownWorld(t, lease...)
	id, service := w.app(t)
	w.pod(t, service, service+"-1").Write("hello")
	if _, err := w.Serve(t.Context(), services(), lease...); err != nil { // which stands by
		t.Fatal(err)
	}
	eventually(t, "both answer", func() error {
		list := w.Start(t, "nats micro ls "+logsvc.ServiceName).Wait()
		if n := len(regexp.MustCompile(`[0-9A-Za-z]{22}`).FindAllString(list, -1)); n != 2 {
			return fmt.Errorf("got\n%s", list)
		}
		return nil
	})
	for range 20 {
		if got := w.Start(t, "nats req --raw --timeout=5m "+subjectOf(t, subjects.LogGet, id)+" ''").Wait(); strings.TrimSpace(got) != "hello" {
			t.Fatalf("got %q", got)
		}
	}
	eventually(t, "both have statistics", func() error { // the command waits no longer than 300 ms for the second
		stats := w.Start(t, "nats micro stats "+logsvc.ServiceName).Wait()
		if n := len(regexp.MustCompile(`[0-9A-Za-z]{22}`).FindAllString(stats, -1)); n != 2 {
			return fmt.Errorf("%d replicas have statistics in\n%s", n, stats)
		}
		return nil
	})
	if info := w.Start(t, "nats micro info "+logsvc.ServiceName).Wait(); !strings.Contains(info, "flyte.apps.logs.tail.*.*.*") {
		t.Errorf("got\n%s", info)
	}
}

// A bridge whose NATS server hangs ends within seconds of SIGTERM, also with
// streams in the middle of a flood.
func TestStopWhileNATSHangs(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	id, service := w.app(t)
	pod := w.pod(t, service, service+"-1")
	if !pod.FillPast(500_000, time.Millisecond, numbered) {
		t.Fatal("the pod does not run")
	}
	dir, err := w.Dir("hangs")
	if err != nil {
		t.Fatal(err)
	}
	run := func(name, path string, args ...string) *testenv.Process {
		t.Helper()
		p, err := w.Run(name, filepath.Join(dir, name+".log"), path, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Kill(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	natsServer, err := testenv.NATSServer()
	if err != nil {
		t.Fatal(err)
	}
	listen, err := network.FreeAddress("")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(listen, ":")
	server := run("hanging-nats", natsServer, "-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(dir, "jetstream"))
	bridge := run("hanging-bridge", filepath.Join(w.Bin, "appbridge"), "serve", "--kubeconfig", w.KubeconfigPath,
		"--cluster-name", "hangs", "--nats-url", "nats://"+listen, "--http-listen", "127.0.0.1:0", "--flush-timeout", "1s")
	eventually(t, "the log service answers", func() error {
		probe := w.Prepare(exec.CommandContext(t.Context(), "appbridge", "logs", "--nats-url", "nats://"+listen, "--tail", "1", id.String()))
		out, err := probe.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	for range 4 {
		// Paced: the service sends whether or not anybody reads.
		w.Start(t, "appbridge logs --nats-url nats://"+listen+" --window 0 --timeout 60s --tail 500000 "+id.String()+" >/dev/null")
	}
	eventually(t, "the streams are under way", func() error {
		if pod.Followers() < 4 {
			return fmt.Errorf("%d of 4", pod.Followers())
		}
		return nil
	})
	if err := server.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Until what is written goes nowhere.
	if err := testenv.Pause(t.Context(), 3*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := bridge.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-bridge.Done():
	case <-time.After(patience):
		t.Error("the bridge does not end")
	}
}

// --max-reply bounds the answer to get, beside what the server lets through.
func TestMaxReply(t *testing.T) {
	t.Parallel()
	const most, lines = 64 << 10, 1500
	w := ownWorld(t, "--max-reply", "64Ki")
	id, service := w.app(t)
	pod := w.pod(t, service, service+"-1")
	for i := range lines {
		pod.Write(numbered(i))
	}
	nc, err := nats.Connect(w.NATS, nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	answer, err := nc.Request(subjectOf(t, subjects.LogGet, id), []byte(`{"tail": "all"}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	if n := answer.Size() - len(answer.Subject) - len(answer.Reply); n > most || n < most*9/10 || !strings.HasSuffix(string(answer.Data), numbered(lines-1)+"\n") {
		t.Errorf("the answer has %d bytes, want at most %d: %.100q", n, most, answer.Data)
	}
}
