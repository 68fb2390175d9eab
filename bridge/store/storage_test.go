package store

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// TestClusterRenamed: the name is in each event's ce-source, so a change of it is logged.
func TestClusterRenamed(t *testing.T) {
	nc := connectTo(t, suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	for _, name := range []string{"test", "test", "other"} {
		storage := New(js, encodertest.New().Subjects, Config{
			Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket, Prefix: subjects.DefaultPrefix,
			ClusterName: name, ClusterUID: "c1", Replicas: 1,
		}, zap.New(core))
		if err := errors.Join(storage.Inspect(t.Context()), storage.Identify(Checkpoint{}, 0), storage.Establish(t.Context(), Checkpoint{})); err != nil {
			t.Fatal(err)
		}
	}
	all := logs.All()
	if len(all) != 1 || all[0].Message != "the cluster name has changed: new events have another ce-source" {
		t.Fatalf("got %v", all)
	}
	if got := all[0].ContextMap(); got["before"] != "test" || got["clusterName"] != "other" {
		t.Errorf("got %v", got)
	}
}

func TestWithout(t *testing.T) {
	r := func(from, to uint64) subjects.LostRange { return subjects.LostRange{From: from, To: to} }
	for _, test := range []struct {
		name   string
		others []subjects.LostRange
		want   string
	}{
		{"nothing", nil, "10-20"},
		{"elsewhere", []subjects.LostRange{r(1, 9), r(21, 30)}, "10-20"},
		{"all", []subjects.LostRange{r(5, 25)}, ""},
		{"exactly", []subjects.LostRange{r(10, 20)}, ""},
		{"the ends", []subjects.LostRange{r(1, 10), r(20, 20)}, "11-19"},
		{"the middle", []subjects.LostRange{r(12, 13), r(15, 15)}, "10-11,14-14,16-20"},
	} {
		if got := subjects.FormatLostRanges(WithoutRanges(r(10, 20), test.others)); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}

// A server of the cluster that is not there yet is waited for. Too few servers are a mistake.
func TestNoPeers(t *testing.T) {
	for text, config := range map[string]bool{
		"no suitable peers for placement, peer offline":         false,
		"no suitable peers for placement, insufficient storage": true,
		"no suitable peers for placement":                       true,
	} {
		err := (&Storage{Config: Config{Replicas: 3}}).explainCreate("create stream X",
			&jetstream.APIError{Code: 400, ErrorCode: codeInsufficientResources, Description: text})
		if _, got := errors.AsType[*app.ConfigError](err); got != config {
			t.Errorf("%s: got %v, a ConfigError: %t", text, err, got)
		}
	}
}
