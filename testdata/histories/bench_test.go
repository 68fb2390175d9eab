package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	benchEvents = 200_000
	benchApps   = 1_000
)

// BenchmarkConsume reads 200,000 updates of about 2 KB with package appwatch and with an ordered
// consumer of the client library, in turns. ratio is how many events appwatch reads while the other
// reads one. The other reads the sequence of each message, and its body where that is compared.
//
//	go test -run '^$' -bench Consume -benchtime 3x ./testdata/histories
func BenchmarkConsume(b *testing.B) {
	js, size := benchStream(b)
	for _, of := range []struct {
		name        string
		headersOnly bool
		decode      bool
	}{
		{"headers", true, false},
		{"bodies", false, false},
		{"decoded", false, true},
	} {
		b.Run(of.name, func(b *testing.B) {
			var bare, watched time.Duration
			for i := 0; b.Loop(); i++ {
				first, second := &bare, &watched
				read := []func(context.Context, jetstream.JetStream, bool, bool) error{readBare, readWatched}
				if i%2 == 1 { // neither is always the first
					first, second = second, first
					read[0], read[1] = read[1], read[0]
				}
				for i, sum := range []*time.Duration{first, second} {
					began := time.Now()
					if err := read[i](b.Context(), js, of.headersOnly, of.decode); err != nil {
						b.Fatal(err)
					}
					*sum += time.Since(began)
				}
			}
			events := float64(benchEvents) * float64(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(size), "B/event")
			b.ReportMetric(events/bare.Seconds(), "bare/s")
			b.ReportMetric(events/watched.Seconds(), "appwatch/s")
			b.ReportMetric(bare.Seconds()/watched.Seconds(), "ratio")
		})
	}
}

func readBare(ctx context.Context, js jetstream.JetStream, headersOnly, decode bool) error {
	consumer, err := js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{HeadersOnly: headersOnly})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next()
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if decode {
			if err := appv1.Decode(msg.Data(), msg.Headers().Get(subjects.CEDataContentType), &appv1.WatchResponse{}); err != nil {
				return err
			}
		}
		if meta.Sequence.Stream == benchEvents {
			return nil
		}
	}
}

func readWatched(ctx context.Context, js jetstream.JetStream, headersOnly, decode bool) error {
	for item, err := range appwatch.Watch(ctx, js, appwatch.Options{HeadersOnly: headersOnly}) {
		if err != nil {
			return err
		}
		if item.Type == appwatch.Event && decode {
			if _, err := item.State(); err != nil {
				return err
			}
		}
		if item.Type != appwatch.Event && item.Type != appwatch.Mark {
			return fmt.Errorf("a %s", item.Type)
		}
		if item.Sequence == benchEvents {
			return nil
		}
	}
	return ctx.Err()
}

// benchStream is a server with the events and an empty bucket, and the size of an event's body.
func benchStream(b *testing.B) (jetstream.JetStream, int) {
	srv := suite.NATS(b, &server.Options{JetStream: true, StoreDir: b.TempDir()})
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{names.Events()}, AllowDirect: true,
		Metadata: map[string]string{subjects.MetadataStreamID: "benchmark"},
	}); err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket}); err != nil {
		b.Fatal(err)
	}
	size := 0
	for n := uint64(1); n <= benchEvents; n++ {
		msg := benchEvent(b, names, n)
		size = len(msg.Data)
		if _, err := js.PublishMsgAsync(msg); err != nil {
			b.Fatal(err)
		}
		if n%1000 == 0 {
			<-js.PublishAsyncComplete()
		}
	}
	return js, size
}

// benchEvent is event n of the stream: the first of an app, or an update.
func benchEvent(b *testing.B, names subjects.Subjects, n uint64) *nats.Msg {
	id := subjects.AppID{Project: "shop", Domain: "production", Name: "app-" + strconv.FormatUint(n%benchApps, 10)}
	version := strconv.FormatUint(n, 10)
	app := func(n uint64) *appv1.App {
		return &appv1.App{
			Metadata: &appv1.Meta{Id: &appv1.Identifier{Org: "acme", Project: id.Project, Domain: id.Domain, Name: id.Name}, Revision: n},
			Spec:     &appv1.Spec{ClusterPool: "pool", DesiredState: appv1.Spec_DESIRED_STATE_ACTIVE},
			Status: &appv1.Status{CurrentReplicas: 2, CreatedAt: timestamppb.New(time.Unix(1_790_000_000, 0)), Conditions: []*appv1.Condition{{
				DeploymentStatus: appv1.Status_DEPLOYMENT_STATUS_ACTIVE, Revision: n, Message: strings.Repeat("every replica is ready. ", 28),
			}}},
		}
	}
	kind, previous, body := subjects.Created, uint64(0), &appv1.WatchResponse{}
	if n > benchApps {
		kind, previous = subjects.Updated, n-benchApps
		body.Event = &appv1.WatchResponse_UpdateEvent{UpdateEvent: &appv1.UpdateEvent{UpdatedApp: app(n), OldApp: app(previous)}}
	} else {
		body.Event = &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: app(n)}}
	}
	subject, err := names.Event(id, kind)
	if err != nil {
		b.Fatal(err)
	}
	key, err := id.Key()
	if err != nil {
		b.Fatal(err)
	}
	data, form, err := appv1.Encode(body, subjects.ContentTypeJSON)
	if err != nil {
		b.Fatal(err)
	}
	uid := fmt.Sprintf("00000000-0000-4000-8000-%012d", n%benchApps)
	msgID := subjects.MessageID{UID: uid, ResourceVersion: version, PreviousSequence: previous}.String()
	msg := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
	for name, value := range map[string]string{
		subjects.HeaderMsgID: msgID, subjects.CEID: msgID, subjects.CESpecVersion: subjects.SpecVersion, subjects.CESource: subjects.Source("benchmark"),
		subjects.CEType: kind.Type(), subjects.CESubject: key, subjects.CETime: "2026-11-23T08:00:00Z", subjects.CEDataContentType: form,
		subjects.HeaderUID: uid, subjects.HeaderResourceVersion: version, subjects.HeaderGeneration: "3", subjects.HeaderNamespace: "flyte",
		subjects.HeaderAppStatus: "ACTIVE", subjects.HeaderPreviousAppStatus: "ACTIVE", subjects.HeaderRevision: "app-00003", subjects.HeaderRevisionResourceVersion: version,
		subjects.HeaderExpectedStream: subjects.DefaultStream, subjects.HeaderExpectedLastSequence: strconv.FormatUint(n-1, 10),
	} {
		msg.Header[name] = []string{value}
	}
	if previous > 0 {
		msg.Header[subjects.HeaderPreviousSequence] = []string{strconv.FormatUint(previous, 10)}
	}
	return msg
}
