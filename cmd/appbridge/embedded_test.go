package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestEmbeddedServerKeepsItsStreams(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	dir := filepath.Join(t.TempDir(), "new", "data")
	log := zaptest.NewLogger(t)
	use := func(do func(js jetstream.JetStream)) {
		t.Helper()
		e, err := startEmbedded(t.Context(), "127.0.0.1:0", dir, 0, log)
		if err != nil {
			t.Fatal(err)
		}
		defer e.stop()
		if !strings.HasPrefix(e.url, "nats://127.0.0.1:") || strings.HasSuffix(e.url, ":0") || strings.HasSuffix(e.url, ":-1") {
			t.Errorf("got URL %q, want one with the real port", e.url)
		}
		nc, err := nats.Connect(e.url, nats.Timeout(suite.Patience))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
		if err != nil {
			t.Fatal(err)
		}
		do(js)
	}
	use(func(js jetstream.JetStream) {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
			t.Fatal(err)
		}
	})
	use(func(js jetstream.JetStream) {
		stream, err := js.Stream(t.Context(), "S")
		if err != nil {
			t.Fatal(err)
		}
		message, err := stream.GetMsg(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := string(message.Data), "kept"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	if err := goleak.Find(ignore); err != nil {
		t.Errorf("after the server has stopped: %v", err)
	}
}

func TestEmbeddedServerThatCannotStart(t *testing.T) {
	t.Parallel()
	occupied := configtest.OccupiedPort(t)
	used := t.TempDir()
	log := zaptest.NewLogger(t)
	first, err := startEmbedded(t.Context(), "127.0.0.1:0", used, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	defer first.stop()
	blocked := filepath.Join(configtest.WriteFile(t, t.TempDir(), "file", ""), "data")
	// The lock can be taken there, and the server's own folder cannot be made.
	halfBlocked := t.TempDir()
	configtest.WriteFile(t, halfBlocked, "jetstream", "")
	free := t.TempDir()
	tests := []struct {
		name, listen, dir string
		want              []string
	}{
		{"occupied port", occupied, free, []string{"nats-embedded-listen " + occupied, "address already in use"}},
		{"no such address", "192.0.2.1:0", free, []string{"nats-embedded-listen 192.0.2.1:0", "cannot assign requested address"}},
		{"folder below a file", "127.0.0.1:0", blocked, []string{"nats-embedded-dir " + blocked + ": not a directory"}},
		{"file in place of the streams", "127.0.0.1:0", halfBlocked, []string{"nats-embedded-dir " + halfBlocked}},
		{"folder in use", "127.0.0.1:0", used, []string{"nats-embedded-dir " + used + ": another process keeps its streams there"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e, err := startEmbedded(t.Context(), test.listen, test.dir, 0, log)
			if err == nil {
				e.stop()
				t.Fatal("got no error")
			}
			for _, want := range test.want {
				if got := err.Error(); !strings.Contains(got, want) || strings.Contains(got, "\n") {
					t.Errorf("got %q, want one line with %q in it", got, want)
				}
			}
		})
	}
	// What failed has given the folder back.
	again, err := startEmbedded(t.Context(), "127.0.0.1:0", free, 0, log)
	if err != nil {
		t.Fatal(err)
	}
	again.stop()
}

func TestEmbeddedServerIsGivenUpWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	log := zaptest.NewLogger(t)
	// It may have been ready at the first look: both are right, a hang is not.
	if e, err := startEmbedded(ctx, "127.0.0.1:0", t.TempDir(), 0, log); err == nil {
		e.stop()
	} else if stoppedOr(ctx, err) != nil {
		t.Errorf("got %v, want the end of the context", err)
	}
}

func TestLocalURL(t *testing.T) {
	for _, test := range []struct{ listen, want string }{
		{"127.0.0.1:4222", "nats://127.0.0.1:4222"},
		{"0.0.0.0:4222", "nats://127.0.0.1:4222"},
		{"[::]:4222", "nats://127.0.0.1:4222"},
		{"[::1]:4222", "nats://[::1]:4222"},
		{"192.0.2.1:1", "nats://192.0.2.1:1"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", test.listen)
		if err != nil {
			t.Fatal(err)
		}
		if got := localURL(addr); got != test.want {
			t.Errorf("%s: got %q, want %q", test.listen, got, test.want)
		}
		if got, want := listensOnLoopback(addr), strings.Contains(test.listen, "127.0.0.1") || strings.Contains(test.listen, "::1]"); got != want {
			t.Errorf("%s: got loopback %v, want %v", test.listen, got, want)
		}
	}
}

// TestEmbeddedServerLimit: the streams take what they may, and the process says so when it is
// too little.
func TestEmbeddedServerLimit(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	dir := t.TempDir()
	const limit = 1 << 20
	e, err := startEmbedded(t.Context(), "127.0.0.1:0", dir, limit, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer e.stop()
	if lines := logs.FilterMessage("the embedded NATS server has a limit for its streams").All(); len(lines) != 1 || lines[0].ContextMap()["maxBytes"] != int64(limit) {
		t.Errorf("got %v, want one line with maxBytes %d", lines, limit)
	}
	js := fillStream(t, e, 2*limit)
	const want = "the embedded NATS server is full: its streams take "
	waitFor(t, "a server that is full", func() bool { err := e.ready(); return err != nil && strings.HasPrefix(err.Error(), want) })
	if err := js.DeleteStream(t.Context(), "S"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a server that has room", func() bool { return e.ready() == nil })
}

// fillStream publishes so many bytes, or less when the server takes no more.
func fillStream(t *testing.T, e *embedded, size int) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(e.url, nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	for ; size > 0; size -= 64 << 10 {
		if _, err := js.Publish(t.Context(), "s", make([]byte, 64<<10)); err != nil {
			break
		}
	}
	return js
}

// TestEmbeddedServerLimitFollowsTheDisk: what was free at the start is not the limit for ever.
func TestEmbeddedServerLimitFollowsTheDisk(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	e, err := startEmbedded(t.Context(), "127.0.0.1:0", t.TempDir(), 0, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer e.stop()
	free, known := freeBytes(e.dir)
	if !known {
		t.Fatal("what the disk has free is not known here")
	}
	if got := e.server.JetStreamConfig().MaxStore; got > free || got < free/2 {
		t.Errorf("got a limit of %d with %d bytes free, want about three quarters", got, free)
	}
	// As if the disk had been nearly full at the start.
	e.cancel()
	e.supervising.Wait()
	e.stopServer()
	const little = 1 << 20
	e.limit = little
	if err := e.startServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.limit = 0
	js := fillStream(t, e, 2*little)
	if broken := e.examine(); broken != nil || e.ready() != nil {
		t.Errorf("got %v and %v", broken, e.ready())
	}
	if got := logs.FilterMessage("the embedded NATS server has another limit for its streams").Len(); got != 1 {
		t.Errorf("got %d lines about another limit, want 1", got)
	}
	if _, err := js.Publish(t.Context(), "s", nil); err != nil {
		t.Error(err)
	}
}

func TestEmbeddedServerFolderForAll(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode]int{0o700: 0, 0o750: 0, 0o755: 1, 0o777: 1} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.WarnLevel)
		e, err := startEmbedded(t.Context(), "127.0.0.1:0", dir, 0, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		e.stop()
		const message = "every user of this machine has access to the folder of the embedded NATS server; chmod 700 keeps the events private"
		if got := logs.FilterMessage(message).Len(); got != want {
			t.Errorf("%v: got %d warnings, want %d", mode, got, want)
		}
	}
}
