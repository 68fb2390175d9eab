package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// runbook is a section of docs/runbook.md at work.
type runbook struct {
	t      *testing.T
	dir    string // where its commands run
	env    []string
	blocks []string // that were not run yet
}

func (w *world) runbook(heading string, env ...string) *runbook {
	t := w.t
	t.Helper()
	text := must[[]byte](t)(os.ReadFile(filepath.Join("..", "..", "docs", "runbook.md")))
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/runbook.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	b := &runbook{t: t, dir: t.TempDir()}
	b.env = append(append(os.Environ(), "PATH="+must[string](t)(testenv.BinDir())+":"+os.Getenv("PATH"),
		"HOME="+b.dir, "NATS_URL="+w.server.ClientURL()), env...)
	for i, part := range strings.Split(section, "```") {
		if i%2 == 1 {
			b.blocks = append(b.blocks, strings.TrimPrefix(part, "sh\n"))
		}
	}
	return b
}

// next runs the next block of commands, as one script.
func (b *runbook) next() {
	b.t.Helper()
	if len(b.blocks) == 0 {
		b.t.Fatal("the section has no more commands")
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", b.blocks[0])
	cmd.Dir, cmd.Env = b.dir, b.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.t.Fatalf("%s\n%v\n%s", b.blocks[0], err, out)
	}
	b.blocks = b.blocks[1:]
}

// done fails if commands are left.
func (b *runbook) done() {
	b.t.Helper()
	if len(b.blocks) > 0 {
		b.t.Errorf("not run: %q", b.blocks)
	}
}

// quiet fails if a bridge named a loss or logged an error.
func (r *running) quiet() {
	r.t.Helper()
	for _, name := range []string{"appbridge_lost_sequences_total", "appbridge_removed_sequences_total"} {
		if got := r.metric(name); got != 0 {
			r.t.Errorf("%s is %v", name, got)
		}
	}
	if said := r.logs.FilterLevelExact(zap.ErrorLevel); said.Len() > 0 {
		r.t.Errorf("it logged %v", said.All())
	}
}

// The commands of docs/runbook.md do what it says.
func TestRunbook(t *testing.T) {
	t.Parallel()
	t.Run("back up and restore", func(t *testing.T) {
		t.Parallel()
		newWorld(t).backedUp()
	})
	t.Run("move", func(t *testing.T) {
		t.Parallel()
		newWorld(t).moved()
	})
	t.Run("remove one app's history", func(t *testing.T) {
		t.Parallel()
		newWorld(t).removed()
	})
}

func (w *world) backedUp() {
	t, ctx := w.t, w.t.Context()
	b := w.runbook("Back up and restore")
	cfg := w.elected("first")
	one, two := w.create(w.app("one")), w.create(w.app("two"))
	r := w.start(cfg)
	readers := w.readers()
	w.caughtUp(2, readers[0])
	must[any](t)(nil, r.stop())
	b.next()

	r = w.start(cfg)
	must[*servingv1.Service](t)(w.Failed(ctx, one, "Broken", "after the backup"))
	must[any](t)(nil, w.Client.Delete(ctx, two))
	w.create(w.app("three"))
	w.caughtUp(5, readers[0])
	for _, reader := range readers {
		reader.knows(5)
	}
	must[any](t)(nil, r.stop())
	// A reader that makes its durable consumer before the backup brings it ends the restore.
	for _, reader := range readers {
		reader.opening.Lock()
	}
	b.next()
	for _, reader := range readers {
		reader.opening.Unlock()
	}

	r = w.start(cfg)
	w.bucketIsCluster(readers[0])
	lost := subjects.LostRange{From: 3, To: 5}
	for _, reader := range readers {
		reader.reaches(lost)
	}
	if n := r.logs.FilterMessage("the stream lost acknowledged events").FilterField(zap.Uint64("from", 3)).FilterField(zap.Uint64("to", 5)).Len(); n != 1 {
		t.Errorf("it named the loss %d times, want once", n)
	}
	if got := r.metricOf("appbridge_lost_sequences_total", "storage", "stream"); got != 3 {
		t.Errorf("the metric counts %v lost events, want 3", got)
	}
	b.done()
	w.startsAgain(r, cfg)
}

func (w *world) moved() {
	t := w.t
	other := newWorld(t)
	other.Cluster, other.namespace = w.Cluster, w.namespace
	b := w.runbook("Move to another NATS cluster", "NEW_NATS_URL="+other.server.ClientURL())
	cfg := w.config()
	one := w.create(w.app("one"))
	must[any](t)(nil, w.Client.Delete(t.Context(), w.create(w.app("two"))))
	r := w.start(cfg)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	reader := w.rawReader("ordered", false)
	w.caughtUp(2, reader)
	must[any](t)(nil, r.stop())
	before := w.messages(subjects.DefaultStream)
	b.next()
	w.downNATS()

	r = other.start(cfg)
	r.quiet()
	after := other.messages(subjects.DefaultStream)
	if len(after) != len(before) {
		t.Errorf("the stream has %d messages, it had %d", len(after), len(before))
	}
	for seq, msg := range before {
		if after[seq] == nil || !sameMessage(after[seq], msg) {
			t.Errorf("sequence %d is not what it was", seq)
		}
	}
	reader = other.rawReader("ordered", false)
	other.create(other.app("three"))
	other.caughtUp(3, reader)
	reader.reaches()
	r.quiet()
	b.done()
	other.startsAgain(r, cfg)
}

func (w *world) removed() {
	t, ctx := w.t, w.t.Context()
	b := w.runbook("Remove one app's history")
	cfg := w.config()
	app := testenv.App{Project: "shop", Domain: "production", Name: "storefront", Namespace: w.namespace}
	svc := w.create(app)
	other := w.create(w.app("other"))
	r := w.start(cfg)
	readers := w.readers()
	must[*servingv1.Service](t)(w.Failed(ctx, svc, "Broken", "the password is hunter2"))
	must[*servingv1.Service](t)(w.Failed(ctx, other, "Broken", "it is"))
	must[*servingv1.Service](t)(w.Failed(ctx, svc, "Broken", "no more"))
	w.caughtUp(5, readers[0])
	r.waitReady()
	secret := func() (found []string) {
		for _, stream := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
			for seq, msg := range w.messages(stream) {
				if strings.Contains(string(msg.Data), "hunter2") {
					found = append(found, fmt.Sprintf("%d of %s", seq, stream))
				}
			}
		}
		return found
	}
	if len(secret()) != 2 {
		t.Fatalf("the password is in %v: this test tests nothing", secret())
	}
	b.next()
	if found := secret(); len(found) > 0 {
		t.Errorf("the password is still in %v", found)
	}
	if n := len(w.messages(subjects.DefaultStream)); n != 2 {
		t.Errorf("the stream has %d messages, want the two of the other app", n)
	}
	w.bucketIsCluster(readers[0])

	last := must[*jetstream.RawStreamMsg](t)(must[jetstream.Stream](t)(w.js.Stream(ctx, subjects.BucketStream(subjects.DefaultBucket))).
		GetLastMsgForSubject(ctx, subjects.BucketSubject(subjects.DefaultBucket, "shop.production.storefront"))).Header.Get(subjects.HeaderEventSequence)
	must[*servingv1.Service](t)(w.Progressing(ctx, svc))
	w.caughtUp(6, readers[0])
	if next := w.messages(subjects.DefaultStream)[6]; next == nil || next.Header.Get(subjects.HeaderPreviousSequence) != last ||
		next.Header.Get(subjects.HeaderSynthesized) != "" {
		t.Errorf("the app's next event is %v, want one after %s", nextHeader(next), last)
	}
	for _, reader := range readers {
		reader.reaches()
	}
	r.waitReady()
	r.quiet()
	b.done()
	w.startsAgain(r, cfg)
}

func nextHeader(msg *jetstream.RawStreamMsg) nats.Header {
	if msg == nil {
		return nil
	}
	return msg.Header
}
