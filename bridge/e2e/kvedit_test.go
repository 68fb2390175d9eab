package e2e_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// `nats kv edit` replaces the configuration of the bucket's stream and drops its metadata. The entries
// show whose bucket it is: the bridge goes on, and so does the next start, which writes the metadata
// again.
func TestBucketEdited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start(w.config())
	svc := w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	edit := func() {
		t.Helper()
		must[jetstream.KeyValue](t)(w.js.UpdateKeyValue(t.Context(), jetstream.KeyValueConfig{
			Bucket: subjects.DefaultBucket, Description: "edited", History: 1, Replicas: 1, Storage: jetstream.FileStorage,
		}))
		info := w.stream(subjects.BucketStream(subjects.DefaultBucket)).CachedInfo()
		if id := info.Config.Metadata[subjects.MetadataStreamID]; id != "" {
			t.Fatal("the metadata are kept: this test tests nothing")
		}
	}
	edit()
	r.checked()
	svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	w.converged(w.waitFor(0, "created one", "updated one"))
	must[any](t)(nil, r.stop())
	edit()
	w.start(w.config())
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	w.converged(w.waitFor(0, "created one", "updated one", "updated one"))
	if id := w.stream(subjects.BucketStream(subjects.DefaultBucket)).CachedInfo().Config.Metadata[subjects.MetadataStreamID]; id == "" {
		t.Error("the metadata are not written again")
	}
}
