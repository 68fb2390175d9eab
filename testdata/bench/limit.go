package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// The limits: a client that does nothing but publish messages of a bridge.
const (
	limitEvents  = "events"  // the events alone
	limitEntries = "entries" // and the entry of each in the bucket
	limitFenced  = "fenced"  // both with the preconditions of a bridge
)

// window is how many messages of a limit may wait for their ack.
const window = 256

// messages are what a bridge wrote: an event and a bucket entry.
type messages struct{ Event, Entry *nats.Msg }

// runLimit publishes so many pairs of the messages in the file, and prints how long that took.
func runLimit(ctx context.Context, url, kind, file string, apps, count int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var of messages
	if err := json.Unmarshal(text, &of); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	nc, err := nats.Connect(url, nats.Timeout(patience))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(window), jetstream.WithDefaultTimeout(patience))
	if err != nil {
		return err
	}
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{names.Events()}}); err != nil {
		return err
	}
	if _, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket}); err != nil {
		return err
	}
	began := time.Now()
	last := make([]int, apps) // sequence of each app's last event
	var acks []jetstream.PubAckFuture
	publish := func(m *nats.Msg) error {
		ack, err := js.PublishMsgAsync(m, jetstream.WithStallWait(patience))
		acks = append(acks, ack)
		return err
	}
	for n := range count {
		app := n * 7919 % apps
		event, entry := of.pair(names, app, n, last[app], kind == limitFenced)
		last[app] = n + 1
		if err := publish(event); err != nil {
			return err
		}
		if kind == limitEvents {
			continue
		}
		if err := publish(entry); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		}
	}
	_, err = fmt.Println(time.Since(began).Seconds())
	return err
}

// pair are the messages of an app as the nth event of the stream.
func (m messages) pair(names subjects.Subjects, app, n, previous int, fenced bool) (event, entry *nats.Msg) {
	id := subjects.AppID{Project: "bench", Domain: "production", Name: "app-" + string(padded(nil, app))}
	event, entry = nats.NewMsg(""), nats.NewMsg("")
	for key, values := range m.Event.Header {
		event.Header[key] = values
	}
	for key, values := range m.Entry.Header {
		entry.Header[key] = values
	}
	event.Data, entry.Data = m.Event.Data, m.Entry.Data
	event.Subject, _ = names.Event(id, subjects.Updated) // the id is a legal one
	entry.Subject = subjects.BucketSubject(subjects.DefaultBucket, id.Project+"."+id.Domain+"."+id.Name)
	event.Header[subjects.HeaderMsgID] = []string{strconv.Itoa(n)}
	for _, key := range []string{
		subjects.HeaderExpectedStream, subjects.HeaderExpectedLastSequence,
		subjects.HeaderExpectedLastSubjectSequence, subjects.HeaderExpectedLastSubjectSequenceSubject,
	} {
		event.Header.Del(key)
		entry.Header.Del(key)
	}
	if fenced {
		event.Header[subjects.HeaderExpectedLastSequence] = []string{strconv.Itoa(n)}
		event.Header[subjects.HeaderExpectedLastSubjectSequence] = []string{strconv.Itoa(previous)}
		event.Header[subjects.HeaderExpectedLastSubjectSequenceSubject] = []string{event.Subject[:len(event.Subject)-len(subjects.Updated)] + "*"}
		entry.Header[subjects.HeaderExpectedLastSequence] = []string{strconv.Itoa(n)}
	}
	return event, entry
}
