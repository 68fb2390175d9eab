package subjects_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/appbridge/appbridge/subjects"
)

func TestHeadersAreThoseOfNATS(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, got, want string
	}{
		{"message id", subjects.HeaderMsgID, jetstream.MsgIDHeader},
		{"stream", subjects.HeaderExpectedStream, jetstream.ExpectedStreamHeader},
		{"last sequence", subjects.HeaderExpectedLastSequence, jetstream.ExpectedLastSeqHeader},
		{"last sequence of subject", subjects.HeaderExpectedLastSubjectSequence, jetstream.ExpectedLastSubjSeqHeader},
		{"filter", subjects.HeaderExpectedLastSubjectSequenceSubject, jetstream.ExpectedLastSubjSeqSubjHeader},
		{"service error", subjects.HeaderServiceError, micro.ErrorHeader},
		{"service error code", subjects.HeaderServiceErrorCode, micro.ErrorCodeHeader},
		{"trace only", subjects.HeaderTraceOnly, server.MsgTraceOnly},
		{"trace destination", subjects.HeaderTraceDest, server.MsgTraceDest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.got != tc.want {
				t.Fatalf("got %q, want %q", tc.got, tc.want)
			}
		})
	}
	if got, want := subjects.MaxStreamBytes, server.JSMaxNameLen; got != want {
		t.Errorf("longest stream name: got %d, want %d", got, want)
	}
}

// connect starts a JetStream server on disk and connects to it over TCP.
func connect(t *testing.T) *nats.Conn {
	t.Helper()
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("server not ready")
	}
	nc, err := nats.Connect(srv.ClientURL(), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// A server with its default limits takes the longest prefix with the longest
// and strangest id, in every way in which an event and an entry are used.
func TestServerTakesEverySubject(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	nc := connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s := newSubjects(t, strings.Repeat("p", subjects.MaxPrefixBytes))
	streamName := strings.Repeat("s", subjects.MaxStreamBytes-1)
	bucket := strings.Repeat("b", subjects.MaxBucketBytes-1)
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{s.Events()}})
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := subjects.BucketStream(bucket), "KV_"+kv.Bucket(); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}

	strange := make([]byte, 0, 256)
	for i := range 256 {
		strange = append(strange, byte(i))
	}
	for _, tc := range []struct {
		name string
		id   subjects.AppID
	}{
		{"plain", subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}},
		{"wildcards", subjects.AppID{Project: "*", Domain: ".", Name: ">"}},
		{"every byte", subjects.AppID{Project: "p", Domain: "$KV", Name: string(strange)}},
		{"longest", subjects.AppID{Project: "p", Domain: "d", Name: strings.Repeat("n", subjects.MaxKeyBytes-4)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			roundTrip(ctx, t, js, stream, kv, s, tc.id)
		})
	}
	if err := nc.LastError(); err != nil {
		t.Errorf("the connection saw %v", err)
	}
}

// roundTrip appends an event of the app with all fences, reads it back through
// a consumer filtered to the app, and does the same with its bucket entry.
func roundTrip(
	ctx context.Context, t *testing.T, js jetstream.JetStream, stream jetstream.Stream,
	kv jetstream.KeyValue, s subjects.Subjects, id subjects.AppID,
) {
	t.Helper()
	subject, err := s.Event(id, subjects.Created)
	if err != nil {
		t.Fatal(err)
	}
	filter, err := s.EventFilter(id)
	if err != nil {
		t.Fatal(err)
	}
	key, err := id.Key()
	if err != nil {
		t.Fatal(err)
	}
	msgID := subjects.MessageID{UID: key[:1], ResourceVersion: "1"}.String() + key
	msg := &nats.Msg{Subject: subject, Data: []byte("event"), Header: nats.Header{
		subjects.HeaderMsgID:                              {msgID},
		subjects.HeaderExpectedStream:                     {stream.CachedInfo().Config.Name},
		subjects.HeaderExpectedLastSubjectSequence:        {"0"},
		subjects.HeaderExpectedLastSubjectSequenceSubject: {filter},
	}}
	if _, err := js.PublishMsg(ctx, msg); err != nil {
		t.Fatalf("publish event: %v", err)
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Name: strings.Repeat("c", 255), FilterSubject: filter, AckPolicy: jetstream.AckNonePolicy,
	})
	if err != nil {
		t.Fatalf("create consumer: %v", err)
	}
	defer func() {
		if err := stream.DeleteConsumer(ctx, strings.Repeat("c", 255)); err != nil {
			t.Errorf("delete consumer: %v", err)
		}
	}()
	read, err := consumer.Next(jetstream.FetchMaxWait(10 * time.Second))
	if err != nil {
		t.Fatalf("read event: %v", err)
	}
	if got, kind, err := s.ParseEvent(read.Subject()); err != nil || got != id || kind != subjects.Created {
		t.Errorf("event of %q, %q, %v; want %q, created", got, kind, err, id)
	}
	if info, err := consumer.Info(ctx); err != nil || info.NumPending != 0 {
		t.Errorf("the filter of one app matches %+v more, %v", info, err)
	}

	entry := &nats.Msg{Subject: subjects.BucketSubject(kv.Bucket(), key), Data: []byte("entry")}
	if _, err := js.PublishMsg(ctx, entry); err != nil {
		t.Fatalf("publish entry: %v", err)
	}
	got, err := kv.Get(ctx, key)
	if err != nil || string(got.Value()) != "entry" {
		t.Fatalf("get %q: %v, %v", key, got, err)
	}
	marker := &nats.Msg{
		Subject: subjects.BucketSubject(kv.Bucket(), key),
		Header:  nats.Header{subjects.HeaderKVOperation: {subjects.KVDelete}},
	}
	if _, err := js.PublishMsg(ctx, marker); err != nil {
		t.Fatalf("publish marker: %v", err)
	}
	watch, err := kv.Watch(ctx, key)
	if err != nil {
		t.Fatalf("watch %q: %v", key, err)
	}
	defer func() {
		if err := watch.Stop(); err != nil {
			t.Errorf("stop watch: %v", err)
		}
	}()
	select {
	case update := <-watch.Updates():
		if update == nil || update.Key() != key || update.Operation() != jetstream.KeyValueDelete {
			t.Errorf("watch shows %+v, want the marker of %q", update, key)
		}
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}
