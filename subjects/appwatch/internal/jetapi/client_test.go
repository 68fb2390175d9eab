package jetapi_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { suite.Main(m, func() error { return nil }) }

// open makes the stream S with the messages s.0 to s.99, and a client.
func open(t *testing.T) (*nats.Conn, *jetapi.Client) {
	t.Helper()
	nc, err := nats.Connect(suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL(), nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		n := strconv.Itoa(i)
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "s." + n, Header: nats.Header{"N": {n}}}); err != nil {
			t.Fatal(err)
		}
	}
	c := jetapi.New(js)
	t.Cleanup(c.Close)
	return nc, c
}

func TestMessages(t *testing.T) {
	t.Parallel()
	_, c := open(t)
	info, err := c.Stream(t.Context(), "S")
	if err != nil || info.State.LastSeq != 100 || info.IsMirror() || info.HasSources() {
		t.Fatalf("got %+v, %v", info, err)
	}
	for _, tc := range []struct {
		name string
		read func() (*jetapi.Message, error)
		want uint64
	}{
		{"at", func() (*jetapi.Message, error) { return c.MessageAt(t.Context(), "S", 7) }, 7},
		{"at, none", func() (*jetapi.Message, error) { return c.MessageAt(t.Context(), "S", 101) }, 0},
		{"last", func() (*jetapi.Message, error) { return c.LastMessage(t.Context(), "S", "s.>") }, 100},
		{"last, none", func() (*jetapi.Message, error) { return c.LastMessage(t.Context(), "S", "s.x") }, 0},
		{"next", func() (*jetapi.Message, error) { return c.NextMessage(t.Context(), "S", "s.*", 50) }, 50},
		{"next, none", func() (*jetapi.Message, error) { return c.NextMessage(t.Context(), "S", "s.3", 50) }, 0},
	} {
		switch m, err := tc.read(); {
		case tc.want == 0:
			if !errors.Is(err, jetapi.ErrNoMessage) {
				t.Errorf("%s: got %v, %v, want %v", tc.name, m, err, jetapi.ErrNoMessage)
			}
		case err != nil:
			t.Errorf("%s: %v", tc.name, err)
		default:
			n := strconv.FormatUint(tc.want-1, 10)
			if m.Sequence != tc.want || m.Subject != "s."+n || m.Header.Get("N") != n || m.Time.IsZero() {
				t.Errorf("%s: got %+v, want sequence %d", tc.name, m, tc.want)
			}
		}
	}
	if got, err := c.LastSequence(t.Context(), "S", []string{"s.3", "s.x", "s.1"}); err != nil || got != 4 {
		t.Errorf("got %d, %v, want 4", got, err)
	}
}

// A consumer delivers more than it requests at first, in order. It ends with ErrClosed once the
// connection is closed.
func TestConsume(t *testing.T) {
	t.Parallel()
	nc, c := open(t)
	f, err := c.Consume(t.Context(), "S", jetstream.ConsumerConfig{FilterSubjects: []string{"s.>"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Pending() != 100 {
		t.Errorf("got %d pending, want 100", f.Pending())
	}
	for want := uint64(1); want <= 100; want++ {
		msg, d, err := f.Next(t.Context(), 10*time.Second)
		if err != nil || msg == nil || d.Sequence != want || d.Pending != 100-want || d.Stored == 0 {
			t.Fatalf("got %v, %+v, %v, want sequence %d", msg, d, err, want)
		}
	}
	if msg, _, err := f.Next(t.Context(), 10*time.Millisecond); msg != nil || err != nil {
		t.Errorf("got %v, %v at the end", msg, err)
	}
	nc.Close()
	for err == nil {
		_, _, err = f.Next(t.Context(), 10*time.Second)
	}
	if !errors.Is(err, jetapi.ErrClosed) {
		t.Errorf("got %v, want %v", err, jetapi.ErrClosed)
	}
	if err := c.WaitConnected(t.Context(), func(error) {}); !errors.Is(err, jetapi.ErrClosed) {
		t.Errorf("got %v, want %v", err, jetapi.ErrClosed)
	}
}
