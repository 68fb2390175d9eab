package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// damage changes one byte of the last message with a text in the files of a stream. The server does not
// serve that message any more once it has started again, and still counts it.
func (w *world) damage(stream, text string) {
	w.t.Helper()
	found := 0
	for _, file := range must[[]string](w.t)(filepath.Glob(filepath.Join(w.dir, streamsDir, stream, "msgs", "*.blk"))) {
		content := must[[]byte](w.t)(os.ReadFile(file))
		if i := bytes.LastIndex(content, []byte(text)); i >= 0 {
			content[i] ^= 1
			found++
			must[any](w.t)(nil, os.WriteFile(file, content, 0o600))
		}
	}
	if found != 1 {
		w.t.Fatalf("%q is in %d files", text, found)
	}
}

// The newest message of the bucket is damaged on the server's disk while no bridge runs, and the stream
// has no event any more. The other entries count: an app that was deleted meanwhile has a delete, and
// the others are not published again.
func TestDamagedMessageOfTheBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	two := w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	w.create(w.app("three"))
	w.waitFor(0, "created one", "created two", "created three")
	must[any](t)(nil, r.stop())
	must[any](t)(nil, w.stream(subjects.DefaultStream).Purge(t.Context()))
	must[any](t)(nil, w.Client.Delete(t.Context(), two))
	port := w.port()
	w.downNATS()
	w.damage(subjects.BucketStream(subjects.DefaultBucket), `"three"`)
	w.upNATS(port)
	cfg.FlushTimeout = time.Second // the server does not replace a damaged message
	w.start(cfg)
	w.waitFor(3, "deleted two", "created three")
}
