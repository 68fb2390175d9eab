package store

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A message whose headers cannot be read is no event. It must not stop what reads the stream.
func TestUnreadableHeaders(t *testing.T) {
	srv := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	nc := connectTo(t, srv.ClientURL())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	s := encodertest.New().Subjects
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{s.Events()}}); err != nil {
		t.Fatal(err)
	}
	id := subjects.AppID{Project: "p", Domain: "d", Name: "a"}
	subject, err := s.Event(id, subjects.Created)
	if err != nil {
		t.Fatal(err)
	}
	// The client would not send it.
	raw, err := net.Dial("tcp", strings.TrimPrefix(srv.ClientURL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	const header, body = "NATS/1.0\r\nno header\r\n\r\n", "x"
	if _, err := fmt.Fprintf(raw, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n",
		subject, len(header), len(header)+len(body), header, body); err != nil {
		t.Fatal(err)
	}
	read := make([]byte, 1)
	for text := ""; !strings.Contains(text, "PONG"); text += string(read) {
		if _, err := io.ReadFull(raw, read); err != nil {
			t.Fatal(err)
		}
	}
	var m *Message
	suite.Eventually(t, suite.Patience, "the message is stored", func() (err error) {
		m, err = MessageAt(t.Context(), js, subjects.DefaultStream, 1)
		return err
	})
	if len(m.Header) > 0 || string(m.Data) != body {
		t.Errorf("got %+v", m)
	}
	if last, err := NewReader(js, subjects.DefaultStream, s).LastEvent(t.Context(), id, 0); err != nil || last.Foreign != 1 {
		t.Errorf("got %+v, %v", last, err)
	}
}
