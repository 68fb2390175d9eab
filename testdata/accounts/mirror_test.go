package accounts_test

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A mirror follows many events: the flow control of its consumer crosses the accounts. It has
// those of its project, at the sequences of the original.
func TestMirrorFollows(t *testing.T) {
	const events = 4000
	bin, err := testenv.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, "nats.conf", nil)
	s.world = &kubesuite.World{Bin: bin}
	js, err := jetstream.New(s.client("bridge").nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FLYTE_APPS", Subjects: []string{"flyte.apps.events.>"}}); err != nil {
		t.Fatal(err)
	}
	s.command(mirrorCommands(t)[0])
	body := make([]byte, 32<<10)
	for i := range 2 * events {
		project := []string{"shop", "bank"}[i%2]
		if _, err := js.PublishAsync("flyte.apps.events."+project+".production.storefront.updated", body, jetstream.WithStallWait(suite.Patience)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-t.Context().Done():
		t.Fatal("the events are not acknowledged")
	}
	s.mirrored("shop", "FLYTE_APPS", events)
	msg, err := s.client("shop").request("$JS.API.STREAM.INFO.FLYTE_APPS", "")
	if err != nil {
		t.Fatal(err)
	}
	var info jetstream.StreamInfo
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		t.Fatal(err)
	}
	if got, want := info.State.LastSeq, uint64(2*events-1); info.State.Msgs != events || got != want {
		t.Errorf("the mirror has %d messages up to %d, want %d up to %d", info.State.Msgs, got, events, want)
	}
}
