package contract

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// A receiver of the SDK that is closed while a message arrives leaves the goroutine that delivers it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2.(*Receiver).MsgHandler"))
}

// patience is how long a test waits for a server on a busy machine.
const patience = 5 * time.Minute

// startServer starts a JetStream server on disk and connects to it.
func startServer(t *testing.T) *nats.Conn {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// message is a golden message as it stands in a stream.
func message(t *testing.T, name string) *nats.Msg {
	t.Helper()
	header, body := golden(t, name)
	msg := &nats.Msg{Subject: header[""], Header: nats.Header{}, Data: body}
	delete(header, "")
	for k, v := range header {
		msg.Header[k] = []string{v}
	}
	return msg
}

// binaryMessage is a golden event in binary protobuf.
func binaryMessage(t *testing.T, name string) *nats.Msg {
	t.Helper()
	msg, event := message(t, name), &appv1.WatchResponse{}
	if err := protojson.Unmarshal(msg.Data, event); err != nil {
		t.Fatal(err)
	}
	data, form, err := appv1.Encode(event, subjects.ContentTypeProtobuf)
	if err != nil {
		t.Fatal(err)
	}
	msg.Data = data
	msg.Header.Set(subjects.CEDataContentType, form)
	return msg
}

// checkEvent compares what the SDK made of a message with that.
func checkEvent(t *testing.T, got *cloudevents.Event, msg *nats.Msg) {
	t.Helper()
	if err := got.Validate(); err != nil {
		t.Errorf("%s: %v", msg.Subject, err)
	}
	at, err := time.Parse(time.RFC3339Nano, msg.Header.Get(subjects.CETime))
	if err != nil {
		t.Fatal(err)
	}
	if !got.Time().Equal(at) {
		t.Errorf("%s: time %s, want %s", msg.Subject, got.Time(), at)
	}
	for name, value := range map[string]string{
		subjects.CESpecVersion: got.SpecVersion(), subjects.CEID: got.ID(), subjects.CESource: got.Source(), subjects.CEType: got.Type(),
		subjects.CESubject: got.Subject(), subjects.CEDataContentType: got.DataContentType(), subjects.CEDataSchema: got.DataSchema(),
	} {
		if want := msg.Header.Get(name); value != want {
			t.Errorf("%s: %s is %q, want %q", msg.Subject, name, value, want)
		}
	}
	if len(got.Extensions()) > 0 {
		t.Errorf("%s: extensions %v", msg.Subject, got.Extensions()) // headers of NATS and ours are no attributes
	}
	if !bytes.Equal(got.Data(), msg.Data) {
		t.Errorf("%s: got %d bytes, want %d", msg.Subject, len(got.Data()), len(msg.Data))
	}
}

// startStream is a server with an empty event stream.
func startStream(t *testing.T) (*nats.Conn, nats.JetStreamContext) {
	t.Helper()
	nc := startServer(t)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}}); err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// The client of the CloudEvents SDK receives every event from a stream in order, in JSON and in binary, and
// those of an older version without ce-dataschema. Its filter has four tokens: that excludes fillers
// and notices, which are no CloudEvents.
func TestCloudEventsClientReceives(t *testing.T) {
	t.Parallel()
	nc, js := startStream(t)
	older := message(t, "created.txt")
	older.Header.Del(subjects.CEDataSchema)
	want := []*nats.Msg{older, message(t, "updated.txt"), binaryMessage(t, "updated.txt"), message(t, "deleted.txt"), message(t, "deleted-missed.txt")}
	notice := &nats.Msg{Subject: "flyte.apps.events.notice", Header: nats.Header{subjects.HeaderLostFrom: {"3"}, subjects.HeaderLostTo: {"4"}}}
	for _, msg := range append([]*nats.Msg{notice}, want...) {
		stored := nats.NewMsg(msg.Subject)
		stored.Data = msg.Data
		for name, values := range msg.Header { // without the fences, which hold on their own stream alone
			if name != subjects.HeaderMsgID && !strings.HasPrefix(name, "Nats-Expected-") {
				stored.Header[name] = values
			}
		}
		if _, err := js.PublishMsg(stored); err != nil {
			t.Fatal(err)
		}
	}

	consumer, err := nats_jetstream.NewConsumerFromConn(nc, subjects.DefaultStream, "flyte.apps.events.*.*.*.*", nil, []nats.SubOpt{nats.OrderedConsumer()})
	if err != nil {
		t.Fatal(err)
	}
	// Without these options the client calls its function from many goroutines.
	c, err := cloudevents.NewClient(consumer, client.WithPollGoroutines(1), client.WithBlockingCallback())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	received, done := make(chan cloudevents.Event), make(chan error, 1)
	go func() {
		done <- c.StartReceiver(ctx, func(e cloudevents.Event) {
			select {
			case received <- e:
			case <-ctx.Done():
			}
		})
	}()
	for i, msg := range want {
		select {
		case e := <-received:
			checkEvent(t, &e, msg)
		case <-ctx.Done():
			t.Fatalf("event %d is missing", i+1)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What the SDK makes of single messages: an event's payload decodes, a bucket entry has its App and a
// marker no data; what has no ce- headers is no CloudEvent.
func TestCloudEventsMessages(t *testing.T) {
	t.Parallel()
	read := func(msg *nats.Msg) (*cloudevents.Event, error) {
		return binding.ToEvent(t.Context(), nats_jetstream.NewMessage(msg))
	}
	for _, name := range []string{"created.txt", "updated.txt", "deleted.txt", "deleted-missed.txt", "entry.txt", "marker.txt"} {
		msg := message(t, name)
		e, err := read(msg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkEvent(t, e, msg)
	}

	e, err := read(message(t, "updated.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := e.DataAs(&fields); err != nil || fields["updateEvent"] == nil {
		t.Errorf("got %v, %v", fields, err)
	}
	event := &appv1.WatchResponse{}
	if e, err = read(binaryMessage(t, "updated.txt")); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(e.Data(), event); err != nil || event.GetUpdateEvent().GetOldApp() == nil {
		t.Errorf("got %v, %v", event, err)
	}
	if err := e.DataAs(event); err == nil { // docs/consuming.md: take Data
		t.Error("the SDK decodes binary protobuf without its module for that")
	}

	for _, subject := range []string{"flyte.apps.events.notice", "flyte.apps.events.lost"} {
		msg := &nats.Msg{Subject: subject, Header: nats.Header{subjects.HeaderLostFrom: {"3"}, subjects.HeaderLostTo: {"4"}}}
		if got := nats_jetstream.NewMessage(msg).ReadEncoding(); got == binding.EncodingBinary {
			t.Errorf("%s has encoding %s", subject, got)
		}
		if e, err := read(msg); err == nil && e.Validate() == nil {
			t.Errorf("%s is an event: %s", subject, e)
		}
	}
}

// Without that filter the SDK rejects a notice, and a consumer with acknowledgements receives it
// again and again; events are received all the same.
func TestCloudEventsClientRejectsNotices(t *testing.T) {
	t.Parallel()
	nc, js := startStream(t)
	event := message(t, "created.txt")
	for name := range event.Header {
		if strings.HasPrefix(name, "Nats-") {
			delete(event.Header, name)
		}
	}
	for _, msg := range []*nats.Msg{{Subject: "flyte.apps.events.notice", Header: nats.Header{subjects.HeaderLostFrom: {"3"}, subjects.HeaderLostTo: {"4"}}}, event} {
		if _, err := js.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	consumer, err := nats_jetstream.NewConsumerFromConn(nc, subjects.DefaultStream, "flyte.apps.events.>", nil, []nats.SubOpt{nats.Durable("reader"), nats.ManualAck(), nats.AckWait(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := cloudevents.NewClient(consumer, client.WithPollGoroutines(1), client.WithBlockingCallback())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	received, done := make(chan cloudevents.Event, 1), make(chan error, 1)
	go func() {
		done <- c.StartReceiver(ctx, func(e cloudevents.Event) {
			select {
			case received <- e:
			case <-ctx.Done(): // it was delivered again, on a slow machine
			}
		})
	}()
	select {
	case e := <-received:
		checkEvent(t, &e, event)
	case <-ctx.Done():
		t.Fatal("the event is missing")
	}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for again := 0; again == 0; {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatal("the notice is not delivered again")
		}
		info, err := js.ConsumerInfo(subjects.DefaultStream, "reader")
		if err != nil {
			t.Fatal(err)
		}
		again = info.NumRedelivered
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The SDK's consumer tries to create a missing stream, and fails: its name does not begin a subject.
func TestCloudEventsConsumerWithoutStream(t *testing.T) {
	t.Parallel()
	nc := startServer(t)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	_, err = nats_jetstream.NewConsumerFromConn(nc, subjects.DefaultStream, "flyte.apps.events.*.*.*.*", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "invalid subject") { // docs/consuming.md has this error
		t.Errorf("got error %v", err)
	}
	if _, err := js.StreamInfo(subjects.DefaultStream); !errors.Is(err, nats.ErrStreamNotFound) {
		t.Errorf("got error %v, want %v", err, nats.ErrStreamNotFound)
	}
}
