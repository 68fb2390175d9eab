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

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/subjects"
)

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
	for {
		n, err := up.Read(buf)
		if err != nil {
			return
		}
		// In each INFO: the server may send another one at any time.
		out := bytes.ReplaceAll(buf[:n], []byte(server.VERSION), []byte(version))
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
	t.Parallel()
	p := startVersionProxy(t, startNATS(t, server.Options{}).Addr().String(), oldVersion)
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, []string{"nats://" + p.addr()}
	err := serve(t.Context(), cfg, zaptest.NewLogger(t), hooks{})
	if want := `the NATS server at ` + p.addr() + ` has version "2.10.9": want 2.11.0 or newer`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestServeLeavesAnOldServer: the server is an older one after a reconnect.
func TestServeLeavesAnOldServer(t *testing.T) {
	t.Parallel()
	p := startVersionProxy(t, startNATS(t, server.Options{}).Addr().String(), newVersion)
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, []string{"nats://" + p.addr()}
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
