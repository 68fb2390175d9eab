package subjects_test

import (
	"context"
	"math"
	"slices"
	"strconv"
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
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("server not ready")
	}
	nc, err := nats.Connect(srv.ClientURL(), nats.Timeout(time.Minute), nats.NoReconnect())
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	msg := &nats.Msg{Subject: subject, Data: []byte("event"), Header: nats.Header{
		subjects.HeaderMsgID:                              {msgID},
		subjects.HeaderExpectedStream:                     {stream.CachedInfo().Config.Name},
		subjects.HeaderExpectedLastSequence:               {strconv.FormatUint(info.State.LastSeq, 10)},
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
	read, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
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

// The messages of the stream itself match the filter of no project, domain or app, not even of those
// that are named as they are. A reader that wants them as well adds a filter.
func TestServerKeepsStreamMessagesFromProjects(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	nc := connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s := newSubjects(t, subjects.DefaultPrefix)
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{s.Events()}})
	if err != nil {
		t.Fatal(err)
	}
	ofProject := func(name string) string { return strings.TrimSuffix(s.Events(), ">") + name + ".>" }
	live, err := nc.SubscribeSync(ofProject("lost"))
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	publish := func(subject string, header nats.Header) {
		t.Helper()
		header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(last, 10))
		ack, err := js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: header})
		if err != nil {
			t.Fatalf("publish %s: %v", subject, err)
		}
		last = ack.Sequence
	}
	from, to := subjects.FormatNotice(subjects.LostRange{From: 1, To: 1})
	publish(s.Lost(), nats.Header{})
	publish(s.Notice(), nats.Header{subjects.HeaderLostFrom: {from}, subjects.HeaderLostTo: {to}})
	events := map[string]string{}
	for _, name := range []string{"lost", "notice", "shop"} {
		id := subjects.AppID{Project: name, Domain: name, Name: name}
		subject, err := s.Event(id, subjects.Created)
		if err != nil {
			t.Fatal(err)
		}
		filter, err := s.EventFilter(id)
		if err != nil {
			t.Fatal(err)
		}
		// Neither a filler nor a notice is in the way of the first event of an app.
		publish(subject, nats.Header{
			subjects.HeaderExpectedLastSubjectSequence:        {"0"},
			subjects.HeaderExpectedLastSubjectSequenceSubject: {filter},
		})
		events[name] = subject
	}
	appOf := func(name string) string { return strings.TrimSuffix(events[name], string(subjects.Created)) + "*" }
	for _, tc := range []struct {
		name    string
		filters []string
		want    []string
	}{
		{"project lost", []string{ofProject("lost")}, []string{events["lost"]}},
		{"project notice", []string{ofProject("notice")}, []string{events["notice"]}},
		{"app lost", []string{appOf("lost")}, []string{events["lost"]}},
		{"app notice", []string{appOf("notice")}, []string{events["notice"]}},
		{"another project", []string{ofProject("shop")}, []string{events["shop"]}},
		{"a project and notices", []string{ofProject("shop"), s.Notice()}, []string{s.Notice(), events["shop"]}},
		{"project notice and notices", []string{ofProject("notice"), s.Notice()}, []string{s.Notice(), events["notice"]}},
		{"everything", []string{s.Events()}, []string{s.Lost(), s.Notice(), events["lost"], events["notice"], events["shop"]}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{FilterSubjects: tc.filters, AckPolicy: jetstream.AckNonePolicy})
			if err != nil {
				t.Fatal(err)
			}
			batch, err := consumer.Fetch(len(tc.want), jetstream.FetchMaxWait(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for msg := range batch.Messages() {
				got = append(got, msg.Subject())
			}
			if err := batch.Error(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			info, err := consumer.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if info.NumPending > 0 {
				t.Errorf("%d messages more are selected", info.NumPending)
			}
		})
	}
	if msg, err := live.NextMsg(time.Minute); err != nil || msg.Subject != events["lost"] {
		t.Errorf("a subscriber of the project lost receives %v, %v, want %s", msg, err, events["lost"])
	}

	// A filler that is purged leaves its sequence used, and what is behind it in place.
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(s.Lost())); err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if info.State.FirstSeq != 2 || info.State.LastSeq != last || info.State.Msgs != last-1 {
		t.Errorf("without the filler the stream is %+v, want sequences 2 to %d", info.State, last)
	}
	notice, err := stream.GetLastMsgForSubject(ctx, s.Notice())
	if err != nil {
		t.Fatal(err)
	}
	lost, err := subjects.ParseNotice(notice.Header.Get(subjects.HeaderLostFrom), notice.Header.Get(subjects.HeaderLostTo))
	if want := (subjects.LostRange{From: 1, To: 1}); err != nil || lost != want {
		t.Errorf("the notice names %v, %v, want %v", lost, err, want)
	}
}

// Stream and bucket take all metadata of the contract, also added later, and with many ranges.
func TestServerTakesMetadata(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	js, err := jetstream.New(connect(t))
	if err != nil {
		t.Fatal(err)
	}
	var ranges []subjects.LostRange
	for i := range uint64(1000) {
		ranges = append(ranges, subjects.LostRange{From: math.MaxUint64 - i, To: math.MaxUint64})
	}
	ours := map[string]string{
		subjects.MetadataClusterUID:    "6f1c0d9e-6f57-4a53-9d5c-0f3f8c1f2a77",
		subjects.MetadataClusterName:   strings.Repeat("n", subjects.MaxClusterNameBytes),
		subjects.MetadataStream:        subjects.DefaultStream,
		subjects.MetadataResetSequence: "1047",
		subjects.MetadataFirstSequence: "5121",
		subjects.MetadataStreamID:      "pX2mVQkQGm3rXo0dJq8b1w",
		subjects.MetadataLostRanges:    subjects.FormatLostRanges(ranges),
		subjects.MetadataLostPending:   ranges[0].String(),
		subjects.MetadataShape:         "base-domain=apps.example.com;encoding=json;ingress-port=0;pod-conditions=false;scheme=https",
		subjects.MetadataShapeOf:       "V5QX3KD2YTMHR6WJ4NEBZ7GLCA",
	}
	s := newSubjects(t, subjects.DefaultPrefix)
	for _, cfg := range []jetstream.StreamConfig{
		{Name: subjects.DefaultStream, Subjects: []string{s.Events()}},
		{Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{subjects.BucketFilter(subjects.DefaultBucket)}},
	} {
		t.Run(cfg.Name, func(t *testing.T) {
			if _, err := js.CreateStream(ctx, cfg); err != nil {
				t.Fatal(err)
			}
			cfg.Metadata = ours
			if _, err := js.UpdateStream(ctx, cfg); err != nil {
				t.Fatal(err)
			}
			stream, err := js.Stream(ctx, cfg.Name)
			if err != nil {
				t.Fatal(err)
			}
			got := stream.CachedInfo().Config.Metadata
			for name, want := range ours {
				if got[name] != want {
					t.Errorf("%s is %.100q, want %.100q", name, got[name], want)
				}
			}
			back, err := subjects.ParseLostRanges(got[subjects.MetadataLostRanges])
			if err != nil || !slices.Equal(back, ranges) {
				t.Errorf("%d ranges come back, %v; want %d", len(back), err, len(ranges))
			}
		})
	}
}
