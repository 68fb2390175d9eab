package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
)

func TestEmbeddedServerKeepsItsStreams(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	dir := filepath.Join(t.TempDir(), "new", "data")
	log := zaptest.NewLogger(t)
	use := func(do func(js jetstream.JetStream)) {
		t.Helper()
		e, err := startEmbedded(t.Context(), "127.0.0.1:0", dir, log)
		if err != nil {
			t.Fatal(err)
		}
		defer e.stop(log)
		if !strings.HasPrefix(e.url, "nats://127.0.0.1:") || strings.HasSuffix(e.url, ":0") || strings.HasSuffix(e.url, ":-1") {
			t.Errorf("got URL %q, want one with the real port", e.url)
		}
		nc, err := nats.Connect(e.url)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
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
	occupied := occupiedPort(t)
	used := t.TempDir()
	log := zaptest.NewLogger(t)
	first, err := startEmbedded(t.Context(), "127.0.0.1:0", used, log)
	if err != nil {
		t.Fatal(err)
	}
	defer first.stop(log)
	blocked := filepath.Join(writeFile(t, t.TempDir(), "file", ""), "data")
	// The lock can be taken there, and the server's own folder cannot be made.
	halfBlocked := t.TempDir()
	writeFile(t, halfBlocked, "jetstream", "")
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
			e, err := startEmbedded(t.Context(), test.listen, test.dir, log)
			if err == nil {
				e.stop(log)
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
	again, err := startEmbedded(t.Context(), "127.0.0.1:0", free, log)
	if err != nil {
		t.Fatal(err)
	}
	again.stop(log)
}

func TestEmbeddedServerIsGivenUpWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	log := zaptest.NewLogger(t)
	// It may have been ready at the first look: both are right, a hang is not.
	if e, err := startEmbedded(ctx, "127.0.0.1:0", t.TempDir(), log); err == nil {
		e.stop(log)
	} else if stoppedOr(ctx, err) != nil {
		t.Errorf("got %v, want the end of the context", err)
	}
}

func TestLocalURL(t *testing.T) {
	for _, test := range []struct{ listen, want string }{
		{"127.0.0.1:4222", "nats://127.0.0.1:4222"},
		{"0.0.0.0:4222", "nats://127.0.0.1:4222"},
		{"[::]:4222", "nats://[::1]:4222"},
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
