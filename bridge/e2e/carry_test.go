package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/subjects"
)

// A bridge that makes a missing stream or bucket again is killed before it has carried that behind the
// sequences that were acknowledged. Another one, which remembers nothing, goes on there: no sequence
// is used twice, and nothing is named as lost.
func TestMadeAgainInterrupted(t *testing.T) {
	t.Parallel()
	bucketStream := subjects.BucketStream(subjects.DefaultBucket)
	for name, at := range map[string]string{
		"stream": "STREAM.PURGE." + subjects.DefaultStream,
		"bucket": "STREAM.PURGE." + bucketStream,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			g := w.natsGate()
			r := w.startAt(g, cfg)
			w.create(w.app("one"))
			w.create(w.app("two"))
			w.converged(w.waitFor(0, "created one", "created two"))
			acknowledged := w.stream(bucketStream).CachedInfo().State.LastSeq

			creates := g.holdAt("STREAM.CREATE.")
			must[any](t)(nil, w.js.DeleteStream(t.Context(), bucketStream))
			must[any](t)(nil, w.js.DeleteStream(t.Context(), cfg.Stream))
			reached(t, "it makes them again", creates)
			w.filesRemoved(cfg.Stream, bucketStream)
			hit := g.holdAt(at)
			g.release()
			reached(t, "it carries what it made", hit)
			made := w.stream(at[len("STREAM.PURGE."):]).CachedInfo().State
			if made.LastSeq != 0 {
				t.Fatalf("it ends at %d already: this test tests nothing", made.LastSeq)
			}
			r.kill(g)
			w.create(w.app("three"))

			kube := rest.CopyConfig(w.Config)
			kube.QPS = -1
			again := w.launch(cfg, kube)
			again.waitReady()
			w.noneOwed(cfg)
			state := w.stream(cfg.Stream).CachedInfo().State
			if want := uint64(3); state.FirstSeq < want || state.Msgs != 3 {
				t.Errorf("the stream has %d events from %d on, want 3 from %d on at the lowest", state.Msgs, state.FirstSeq, want)
			}
			// Without its stream, and without election, nothing remembers the bucket's end.
			if first := w.firstMessage(bucketStream); name == "bucket" && first <= acknowledged {
				t.Errorf("the bucket's first message is at %d, which was acknowledged before: it ended at %d", first, acknowledged)
			}
			if n := again.metric("appbridge_lost_sequences_total"); n > 0 {
				t.Errorf("it named %v sequences as lost", n)
			}
		})
	}
}

// filesRemoved waits until the server has removed the files of streams that were deleted, which it does
// in the background: it would take those of a stream of the same name along.
func (w *world) filesRemoved(names ...string) {
	w.t.Helper()
	for _, name := range names {
		folder := filepath.Join(w.server.JetStreamConfig().StoreDir, "$G", "streams", name)
		eventually(w.t, "the files of stream "+name+" are removed", func() error {
			if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is there (%w)", folder, err)
			}
			return nil
		})
	}
}

// A first sequence in the metadata that the stream cannot have been made with is refused, by name.
func TestFirstSequenceEdited(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"9000000000", "18446744073709551615", "0", "x"} {
		for _, name := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
			t.Run(fmt.Sprint(name, " ", value), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				r := w.start(w.config())
				w.create(w.app("one"))
				w.converged(w.waitFor(0, "created one"))
				must[any](t)(nil, r.stop())
				before := w.ends(subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket))
				w.changeStream(name, func(c *jetstream.StreamConfig) { c.Metadata[subjects.MetadataFirstSequence] = value })
				says(t, w.launch(w.config(), nil).ended(), subjects.MetadataFirstSequence, value, "remove the key")
				if now := w.ends(subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)); now != before {
					t.Errorf("the refused start changed the ends from %s to %s", before, now)
				}
			})
		}
	}
}

// So is one that no stream can have, in a stream that was made with it by hand.
func TestFirstSequenceMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const value = "9000000000000000000"
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"},
		Metadata: map[string]string{subjects.MetadataFirstSequence: value},
	}))
	says(t, w.launch(w.config(), nil).ended(), subjects.MetadataFirstSequence, value, "remove the key")
	if last := w.streamState(subjects.DefaultStream).LastSeq; last > 0 {
		t.Errorf("the refused start changed the end to %d", last)
	}
}

// firstMessage is the lowest sequence of a stream that has a message.
func (w *world) firstMessage(stream string) uint64 {
	w.t.Helper()
	return w.stream(stream).CachedInfo().State.FirstSeq
}
