package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/subjects"
)

func TestCheckNATSVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"2.11.0": true, "2.11.0-RC.1": true, "2.11.0-dev": true, "2.11.0-preview.2": true, "2.11.12": true, "2.12.1-beta": true, "2.12": true, "2.12-beta": true,
		"2.15.2": true, "v2.11.3": true, "2.100.0": true, "3.0.0": true, "10.1.0": true, "2.11.0+build.7": true,
		"2.10.29": false, "2.10.29-RC.5": false, "2.9.25": false, "2.2.0": false, "1.4.1": false, "0.9.6": false,
		"": false, "2": false, "dev": false, "dev.11": false, "2.x.0": false, "-2.11.0": false, "2.-11.0": false, "2.99999999999999999999": false,
	} {
		err := checkNATSVersion("host:4222", version)
		if (err == nil) != ok {
			t.Errorf("%q: got %v", version, err)
		}
		if want := `the NATS server at host:4222 has version "` + version + `": want 2.11.0 or newer`; err != nil && err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}

// versionProxy stands before a NATS server and rewrites the version that it reports, to
// one that is as long.
type versionProxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu      sync.Mutex
	version string
	conns   []net.Conn
}

func startVersionProxy(t *testing.T, target, version string) *versionProxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &versionProxy{listener: listener, target: target, version: version}
	p.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.set("")
		p.running.Wait()
	})
	return p
}

func (p *versionProxy) addr() string { return p.listener.Addr().String() }

// set changes the version and cuts the connections; empty: no more are made.
func (p *versionProxy) set(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = version
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

func (p *versionProxy) serve(conn net.Conn) {
	defer conn.Close()
	up, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	defer up.Close()
	p.mu.Lock()
	version := p.version
	p.conns = append(p.conns, conn, up)
	p.mu.Unlock()
	if version == "" {
		return
	}
	p.running.Go(func() {
		_, _ = io.Copy(up, conn)
		_ = up.Close()
	})
	buf := make([]byte, 64<<10)
	for rewritten := false; ; {
		n, err := up.Read(buf)
		if err != nil {
			return
		}
		out := buf[:n]
		if !rewritten && bytes.Contains(out, []byte(server.VERSION)) {
			out, rewritten = bytes.Replace(out, []byte(server.VERSION), []byte(version), 1), true
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

const (
	oldVersion = "2.10.9"
	newVersion = "2.11.0"
)

func TestLogsRefusesAnOldServer(t *testing.T) {
	s := startNATS(t, server.Options{Websocket: server.WebsocketOpts{Host: "127.0.0.1", Port: -1, NoTLS: true}})
	serveLogs(t, s, func(v *logService) { v.lines(podA, "one\n"); v.end(subjects.LogEndEOF) })
	websocket := strings.TrimPrefix(s.WebsocketURL(), "ws://")
	for name, target := range map[string]string{"nats://": s.Addr().String(), "ws://": websocket} {
		t.Run(name, func(t *testing.T) {
			p := startVersionProxy(t, target, oldVersion)
			code, stdout, stderr := runLogs(t, "shop/production/search", "--nats-url", name+p.addr())
			if code != exitFailure || stdout != "" || !strings.Contains(stderr, p.addr()+` has version "2.10.9": want 2.11.0 or newer`) {
				t.Errorf("got exit code %d, %q and %q", code, stdout, stderr)
			}
			// One that is new enough is taken instead.
			p.set(newVersion)
			if code, stdout, stderr := runLogs(t, "shop/production/search", "--nats-url", name+p.addr()); code != exitOK || stdout != "one\n" {
				t.Errorf("got exit code %d, %q and %q", code, stdout, stderr)
			}
		})
	}
	p := startVersionProxy(t, s.Addr().String(), oldVersion)
	if code, stdout, stderr := runLogs(t, "shop/production/search", "--nats-url", "nats://"+p.addr()+","+s.ClientURL()); code != exitOK || stdout != "one\n" {
		t.Errorf("with another server: got exit code %d, %q and %q", code, stdout, stderr)
	}
}

func TestServeRefusesAnOldServer(t *testing.T) {
	p := startVersionProxy(t, startNATS(t, server.Options{}).Addr().String(), oldVersion)
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATSURL = false, []string{"nats://" + p.addr()}
	err := serve(t.Context(), cfg, &rest.Config{Host: "https://127.0.0.1:1"}, zaptest.NewLogger(t), hooks{})
	if want := `the NATS server at ` + p.addr() + ` has version "2.10.9": want 2.11.0 or newer`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestServeLeavesAnOldServer: the server is an older one after a reconnect.
func TestServeLeavesAnOldServer(t *testing.T) {
	p := startVersionProxy(t, startNATS(t, server.Options{}).Addr().String(), newVersion)
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATSURL = false, []string{"nats://" + p.addr()}
	core, logs := observer.New(zapcore.InfoLevel)
	s := startServing(t, cfg, fakeBridge{ready: errors.New("no leader"), run: untilDone}, zap.New(core))
	waitFor(t, "the connections of the bridge, of operations and both of logs", func() bool { return logs.FilterMessage("NATS connected").Len() == 4 })
	p.set(oldVersion)
	want := `the NATS server at ` + p.addr() + ` has version "2.10.9": want 2.11.0 or newer`
	waitFor(t, "/readyz to say so", func() bool {
		status, body := get(t, s.http+"/readyz")
		return status == 503 && body == want+"\n"
	})
	waitFor(t, "the log to say so", func() bool {
		for _, entry := range logs.FilterMessage("waiting for NATS").All() {
			if entry.ContextMap()["error"] == want {
				return true
			}
		}
		return false
	})
	p.set(newVersion)
	waitFor(t, "the connection to come back", s.nc.IsConnected)
	waitFor(t, "/readyz to be the bridge's", func() bool {
		_, body := get(t, s.http+"/readyz")
		return body == "no leader\n"
	})
}

// TestGreetingOfAHungServer: a server that accepts and sends nothing fails a try within seconds, and a stop at once.
func TestGreetingOfAHungServer(t *testing.T) {
	var d dialer
	address := occupiedPort(t)
	done := make(chan error, 1)
	go func() {
		_, err := d.Dial("tcp", address)
		done <- err
	}()
	waitFor(t, "the connection", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.conn != nil
	})
	d.stop()
	select {
	case err := <-done:
		if err == nil || d.refusal() != nil {
			t.Errorf("got %v, refusal %v", err, d.refusal())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
	}
}
