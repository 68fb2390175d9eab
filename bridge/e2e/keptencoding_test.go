package e2e_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/subjects"
)

// An entry that fits in protobuf and not in JSON keeps its encoding when a bridge starts with JSON. The
// other entries are written again, nothing is published, and the audit finds nothing.
func TestKeptEncoding(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(o *server.Options) { o.MaxPayload = 16 << 10 })
	cfg := w.audited()
	cfg.Encoding = bridge.EncodingProtobuf
	r := w.start(cfg)
	fat := w.create(w.app("fat"))
	w.create(w.app("thin"))
	w.waitFor(0, "created fat", "created thin")
	fat = must[*servingv1.Service](t)(w.Failed(t.Context(), fat, "Broken", strings.Repeat(`"`, 10_000)))
	w.endsAt(3)
	eventually(t, "the bucket has it", func() error {
		if m := w.entries()[w.app("fat").ID()]; m == nil || m.Header.Get(subjects.HeaderEventSequence) != "3" {
			return errNotYet
		}
		return nil
	})
	must[any](t)(nil, r.stop())

	cfg.Encoding = bridge.EncodingJSON
	r = w.start(cfg)
	encoding := func(name string) string {
		return w.entries()[w.app(name).ID()].Header.Get(subjects.CEDataContentType)
	}
	eventually(t, "the other entry is written again", func() error {
		if encoding("thin") != subjects.ContentTypeJSON {
			return errNotYet
		}
		return r.bridge.Ready()
	})
	if got := encoding("fat"); got != subjects.ContentTypeProtobuf {
		t.Errorf("the large entry is %s", got)
	}
	r.completes(2)
	r.foundNothing()
	w.endsAt(3)
	must[*servingv1.Service](t)(w.Failed(t.Context(), fat, "Broken", "briefly"))
	eventually(t, "the smaller entry has the new encoding", func() error {
		if encoding("fat") != subjects.ContentTypeJSON {
			return errNotYet
		}
		return r.bridge.Ready()
	})
	w.endsAt(4)
	w.findsNothing(cfg, quick)
}
