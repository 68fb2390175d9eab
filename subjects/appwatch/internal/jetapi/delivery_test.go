package jetapi

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// parseReply reads what the client's own parser reads.
func FuzzParseReply(f *testing.F) {
	for _, reply := range []string{
		"", "$JS.ACK.", "$JS.ACK.S.C.1.2.3.4.5", "$JS.ACK._.hash.S.C.1.2.3.4.5.token", "$JS.ACK.hub.hash.S.C.1.2.3.4.5", "_INBOX.a",
		"$JS.ACK.S.C.1.18446744073709551615.3.1795251067000000000.0", "$JS.ACK.S.C.1.2.x.4.5",
	} {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		d, ok := parseReply(reply)
		msg := &nats.Msg{Reply: reply, Sub: &nats.Subscription{}}
		meta, err := msg.Metadata()
		if err != nil || !ok {
			return // one of the two is stricter about what no server sends
		}
		if d.Sequence != meta.Sequence.Stream || d.consumer != meta.Sequence.Consumer || d.Pending != meta.NumPending {
			t.Errorf("%q: got %+v, want %+v", reply, d, meta)
		}
	})
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	want := Delivery{Sequence: 2, consumer: 3, Stored: 4, Pending: 5}
	for _, reply := range []string{"$JS.ACK.S.C.1.2.3.4.5", "$JS.ACK._.hash.S.C.1.2.3.4.5.token", "$JS.ACK.hub.hash.S.C.1.2.3.4.5"} {
		if got, ok := parseReply(reply); !ok || got != want {
			t.Errorf("%s: got %+v, %v", reply, got, ok)
		}
	}
	for _, reply := range []string{"", "_INBOX.a.b", "$JS.ACK.S.C.1.2.3.4", "$JS.ACK.S.C.1.2.x.4.5", "$JS.ACK.S.C.1..3.4.5"} {
		if got, ok := parseReply(reply); ok {
			t.Errorf("%s: got %+v", reply, got)
		}
	}
}
