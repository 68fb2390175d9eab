package e2e_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// oldCommit is the last one whose events have no status headers, whose appends the fence of the
// app alone protects, and which knows no notices of loss. Its events have no ce-dataschema either.
const oldCommit = "b552dfb6fa7ee797ea065b59954d1cec8f4c73c7"

// program is a built appbridge.
type program struct {
	name, path string
	status     bool // its events have the status headers and ce-dataschema
}

// builds are the programs, made by the first test that asks.
var builds struct {
	once         sync.Once
	older, newer program
	err          error
}

// programs are appbridge as it was and as it is.
func (w *world) programs() (older, newer program) {
	w.t.Helper()
	dir := must[string](w.t)(w.Dir("programs"))
	builds.once.Do(func() {
		root, cache := filepath.Join("..", ".."), ""
		if cache, builds.err = os.UserCacheDir(); builds.err != nil {
			return
		}
		// A commit stays what it is: its program is kept beside the binaries of the cluster.
		name := fmt.Sprintf("appbridge-%s-%s-%.12s", runtime.GOOS, runtime.GOARCH, oldCommit)
		builds.older = program{name: "old", path: filepath.Join(cache, "appbridge", name)}
		builds.newer = program{name: "new", path: filepath.Join(dir, "appbridge"), status: true}
		var g errgroup.Group
		g.Go(func() error { return kubesuite.Build(w.t.Context(), builds.newer.path) })
		g.Go(func() error { return buildCommit(root, oldCommit, builds.older.path) })
		builds.err = g.Wait()
	})
	if builds.err != nil {
		w.t.Fatal(builds.err)
	}
	return builds.older, builds.newer
}

// buildCommit builds appbridge of a commit of this repository, unless it is there.
func buildCommit(root, commit, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	// Git refuses a clone that another user owns, which it is in a container.
	git := func(args ...string) *exec.Cmd {
		return exec.Command("git", append([]string{"-C", root, "-c", "safe.directory=*"}, args...)...)
	}
	if err := runs(git("cat-file", "-e", commit+"^{commit}")); err != nil {
		return fmt.Errorf("commit %s, from which an upgrade is tested, is not in this clone; a shallow one does not have it "+
			"(`git fetch --unshallow` gets it): %w", commit, err)
	}
	tree, err := os.MkdirTemp("", "appbridge-commit-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	archive := filepath.Join(tree, "tree.tar")
	if err := runs(git("archive", "--output", archive, commit)); err != nil {
		return err
	}
	if err := runs(exec.Command("tar", "-x", "-f", archive, "-C", tree)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Another test binary may do the same.
	unfinished := path + "." + strconv.Itoa(os.Getpid())
	if err := buildProgram(tree, unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

// buildProgram builds appbridge of a tree.
func buildProgram(root, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/appbridge")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	return runs(build)
}

// runs runs a command; the error has what it wrote.
func runs(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}

// replica is a running `appbridge serve`.
type replica struct {
	*kubesuite.Instance
	program
}

// options are those of every command of appbridge.
func (w *world) options(url string) []string {
	w.t.Helper()
	kubeconfig := filepath.Join(w.t.TempDir(), "kubeconfig")
	must[any](w.t)(nil, w.Kubeconfig(kubeconfig))
	return []string{
		"--kubeconfig", kubeconfig, "--cluster-name", "test", "--base-domain", "apps.example.com",
		"--namespaces", w.namespace, "--nats-url", url,
	}
}

// serve starts a program with further options, and waits until it is ready.
func (w *world) serve(p program, options ...string) *replica {
	w.t.Helper()
	address := must[string](w.t)(network.FreeAddress(""))
	log := filepath.Join(w.t.TempDir(), "log")
	name := fmt.Sprintf("appbridge-%s-%s", p.name, address)
	args := append([]string{"serve", "--http-listen", address, "--log-format", "json"}, options...)
	process := must[*testenv.Process](w.t)(w.Run(name, log, p.path, args...))
	r := &replica{Instance: &kubesuite.Instance{Process: process, HTTP: address}, program: p}
	w.t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			w.t.Error(err)
		}
		if text, err := process.LogTail(); w.t.Failed() {
			w.t.Logf("%s: %v\n%s", name, err, text)
		}
	})
	eventually(w.t, name+" is ready", func() error {
		select {
		case <-process.Done():
			return fmt.Errorf("it ended: %w: %w", errFatal, process.Exit())
		default:
		}
		body, status, err := r.Get(w.t.Context(), "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	return r
}

// waitLeads waits until the replica leads and is ready.
func (w *world) waitLeads(r *replica) {
	w.t.Helper()
	eventually(w.t, "the "+r.name+" one leads", func() error {
		if r.Metric(w.t, "appbridge_leader") != 1 {
			return fmt.Errorf("it does not")
		}
		body, status, err := r.Get(w.t.Context(), "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
}

// verifies has a program compare cluster, stream and bucket.
func (w *world) verifies(p program, options []string) error {
	return runs(exec.CommandContext(w.t.Context(), p.path, append([]string{"verify", "--json"}, options...)...))
}

// reader reads the stream as it grows, every message once.
type reader struct {
	mu   sync.Mutex
	seen []audit.Message
}

// readAll reads the stream from its beginning on until the test ends.
func (w *world) readAll() *reader {
	w.t.Helper()
	r := &reader{}
	consumer := must[jetstream.Consumer](w.t)(w.js.OrderedConsumer(w.t.Context(), subjects.DefaultStream, jetstream.OrderedConsumerConfig{}))
	reading := must[jetstream.ConsumeContext](w.t)(consumer.Consume(func(msg jetstream.Msg) {
		if meta, err := msg.Metadata(); err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.seen = append(r.seen, audit.Message{
				Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp,
			})
		}
	}))
	w.t.Cleanup(func() {
		reading.Stop()
		<-reading.Closed()
	})
	return r
}

// messages are all messages so far.
func (r *reader) messages() []audit.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// lastSequence is that of the newest message.
func (r *reader) lastSequence() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 {
		return 0
	}
	return r.seen[len(r.seen)-1].Sequence
}

// newest is the highest version that an event has in a header.
func (r *reader) newest(header string) int64 {
	var newest int64
	for _, m := range r.messages() {
		if version, err := strconv.ParseInt(m.Header.Get(header), 10, 64); err == nil {
			newest = max(newest, version)
		}
	}
	return newest
}

// changes has some apps change at random, of everything that happens to an app, until done is
// closed. It is a load that both programs keep up with on a busy machine.
func (w *world) changes(done <-chan struct{}) *errgroup.Group {
	g := &errgroup.Group{}
	for i := range 3 {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		g.Go(func() error {
			exists := map[string]bool{}
			tick := time.NewTicker(150 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return nil
				case <-tick.C:
				}
				app := w.app(fmt.Sprintf("app.%d-%d", i, random.IntN(6)))
				app.ObjectName = fmt.Sprintf("app-%d-%s", i, app.Name[len(app.Name)-1:])
				if err := w.change(app, exists, random); err != nil {
					return fmt.Errorf("%s: %w", app.Name, err)
				}
			}
		})
	}
	return g
}

// change does one thing to an app.
func (w *world) change(app testenv.App, exists map[string]bool, random *rand.Rand) (err error) {
	ctx, svc := w.t.Context(), app.Service()
	if !exists[app.Name] {
		exists[app.Name] = true
		_, err = w.Create(ctx, app)
		return err
	}
	switch random.IntN(12) {
	case 0:
		_, err = w.Progressing(ctx, svc)
	case 1, 2:
		_, err = w.Ready(ctx, svc, "", int32(random.IntN(3)))
	case 3:
		_, err = w.Failed(ctx, svc, "RevisionFailed", fmt.Sprint(random.Uint32()))
	case 4:
		_, err = w.MarkStopped(ctx, svc)
	case 5:
		app.Image = fmt.Sprintf("registry.example.com/app:%d", random.Uint32())
		_, err = w.Redeploy(ctx, app)
	case 6:
		if _, err = w.SetLabel(ctx, svc, kservice.LabelManaged, ""); err == nil {
			_, err = w.SetLabel(ctx, svc, kservice.LabelManaged, "true")
		}
	case 7:
		exists[app.Name] = false
		err = w.Delete(ctx, svc)
	case 8:
		if err = w.Delete(ctx, svc); err == nil {
			_, err = w.Create(ctx, app)
		}
	case 9, 10:
		if _, scaled := w.Scale(ctx, svc, int32(random.IntN(5))); scaled != nil { // nothing is ready yet
			_, err = w.Ready(ctx, svc, "", 1)
		}
	default:
		_, err = w.Patch(ctx, svc, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"note": fmt.Sprint(random.Uint32())}}})
	}
	return err
}

// upgradeWorld is a world with a NATS server as a process and with the history that etcd held; the
// options of a bridge, and those of one with leader election that merges nothing: every state is
// owed.
func upgradeWorld(t *testing.T) (w *world, history *testenv.History, options, elected []string) {
	t.Helper()
	servers := must[*testenv.NATS](t)(testenv.StartNATS(t.Context(), testenv.NATSOptions{Logf: t.Logf}))
	t.Cleanup(func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	})
	w = newWorldAt(t, servers.URL())
	options = w.options(servers.URL())
	elected = append(slices.Clone(options), "--leader-elect", "--lease-namespace", w.namespace, "--lease-name", "appbridge",
		"--watch-buffer-size", "10000", "--flush-timeout", "2m")
	history = must[*testenv.History](t)(w.History(t.Context(), w.namespace))
	t.Cleanup(func() {
		if err := history.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w, history, options, elected
}

// A rolling upgrade under load, back and forth again, on one stream and one bucket: the next program
// starts as a standby, then the one that leads is asked to stop. Every state that etcd held while
// one of them led is in the stream once and in order; of what happened in between, the net
// difference is. The bucket is the cluster's state at the end.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	w, history, options, elected := upgradeWorld(t)
	older, newer := w.programs()
	began := time.Now()

	leader := w.serve(older, elected...)
	w.waitLeads(leader)
	stream := w.readAll()
	done := make(chan struct{})
	load := w.changes(done)
	var gaps []audit.Gap
	var terms []term // of the leaders so far
	terms = append(terms, term{program: leader.program, first: 1})
	w.flows(stream, time.Now())
	for _, next := range []program{newer, older, newer} {
		standby := w.serve(next, elected...)
		if standby.Metric(t, "appbridge_leader") != 0 {
			t.Fatal("the standby leads: this test tests nothing")
		}
		gap := audit.Gap{From: time.Now(), Why: leader.name + " hands over to " + next.name}
		terms = append(terms, term{program: next, first: w.lastSequence() + 1})
		must[any](t)(nil, leader.Stop(patience))
		terms[len(terms)-2].last = w.lastSequence()
		leader = standby
		w.waitLeads(leader)
		w.publishesNow(stream, history)
		gap.To = time.Now()
		gaps = append(gaps, gap)
		t.Logf("%s: %s after %s", time.Since(began).Round(time.Millisecond), gap.Why, gap.To.Sub(gap.From).Round(time.Millisecond))
		w.flows(stream, gap.To)
	}
	close(done)
	must[any](t)(nil, load.Wait())
	last := w.create(w.app("last"))
	version := must[int64](t)(strconv.ParseInt(last.ResourceVersion, 10, 64))
	must[any](t)(nil, history.WaitFor(t.Context(), version))

	eventually(t, "verify finds no difference", func() error { return w.verifies(newer, options) })
	must[any](t)(nil, leader.Stop(patience))
	eventually(t, "all is read", func() error {
		if read, end := stream.lastSequence(), w.lastSequence(); read != end {
			return fmt.Errorf("up to %d of %d", read, end)
		}
		return nil
	})
	w.checkUpgrade(history.Changes(), stream.messages(), gaps, terms)
	t.Logf("%s: done", time.Since(began).Round(time.Millisecond))
}

// term is the time that a program leads. Around a hand-over, terms overlap.
type term struct {
	program
	first, last uint64 // sequences that may be its own; last is 0 in the last term
}

func (t term) has(sequence uint64) bool {
	return t.first <= sequence && (sequence <= t.last || t.last == 0)
}

// judge audits a run: every version is in the stream, once and in order, but for those in gaps.
func (w *world) judge(versions []testenv.Change, messages []audit.Message, gaps []audit.Gap, older bool) {
	t := w.t
	t.Helper()
	in := audit.Input{
		Events: messages, Gaps: gaps, Subjects: must[subjects.Subjects](t)(subjects.New(subjects.DefaultPrefix)),
		Bucket: subjects.DefaultBucket, ClusterName: "test", App: kservice.Config{BaseDomain: "apps.example.com"},
		Older: older,
	}
	for _, c := range versions {
		in.Changes = append(in.Changes, audit.Change(c))
	}
	for _, entry := range w.entries() {
		in.Entries = append(in.Entries, audit.Message{
			Subject: entry.Subject, Sequence: entry.Sequence, Header: entry.Header, Data: entry.Data, Stored: entry.Time,
		})
	}
	report := audit.Check(in)
	t.Log(report)
	for _, p := range report.Problems() {
		t.Error(p)
	}
	for i, m := range messages {
		if want := uint64(i + 1); m.Sequence != want {
			t.Fatalf("message %d has sequence %d", want, m.Sequence)
		}
	}
}

// checkUpgrade audits a run, and the status headers of each term.
func (w *world) checkUpgrade(versions []testenv.Change, messages []audit.Message, gaps []audit.Gap, terms []term) {
	t := w.t
	t.Helper()
	w.judge(versions, messages, gaps, true)
	words := map[[2]string]string{} // by uid and version
	for _, c := range versions {
		if c.Kind != audit.KindService || c.Deleted {
			continue
		}
		svc := &kservice.Service{}
		must[any](t)(nil, k8sruntime.DefaultUnstructuredConverter.FromUnstructured(c.Object.Object, svc))
		words[[2]string{string(c.UID), c.ResourceVersion}] = kservice.StatusWord(svc)
	}
	previous := map[string]string{} // the status header of each app's newest event
	seen := make([]map[string]int, len(terms))
	for i := range seen {
		seen[i] = map[string]int{}
	}
	for _, m := range messages {
		h := m.Header
		kind, app := h.Get(subjects.CEType), h.Get(subjects.CESubject)
		got := [2]string{h.Get(subjects.HeaderAppStatus), h.Get(subjects.HeaderPreviousAppStatus)}
		schema := h.Get(subjects.CEDataSchema)
		published := false    // by a program that sets this header, or by one that does not
		var wants [][2]string // one for each program that may have published it
		for i, term := range terms {
			if !term.has(m.Sequence) {
				continue
			}
			published = published || term.status && schema == subjects.DataSchema || !term.status && schema == ""
			var want [2]string
			if term.status && kind != subjects.Deleted.Type() {
				want[0] = words[[2]string{h.Get(subjects.HeaderUID), h.Get(subjects.HeaderResourceVersion)}]
			}
			if term.status && kind != subjects.Created.Type() {
				want[1] = previous[app]
			}
			if wants = append(wants, want); got == want {
				seen[i][got[0]]++
			}
		}
		if !published {
			t.Errorf("sequence %d, %s: header %s is %q", m.Sequence, kind, subjects.CEDataSchema, schema)
		}
		if !slices.Contains(wants, got) {
			t.Errorf("sequence %d, %s: status and previous status are %q, want one of %q", m.Sequence, kind, got, wants)
		}
		previous[app] = got[0]
	}
	for i, term := range terms {
		t.Logf("term %d, %s, sequences %d to %d: events by status %v", i+1, term.name, term.first, term.last, seen[i])
		if words := slices.Sorted(maps.Keys(seen[i])); term.status != slices.Contains(words, "ACTIVE") {
			t.Errorf("term %d of the %s one has the words %q", i+1, term.name, words)
		}
	}
}

// A cluster in which nothing changes: neither an upgrade nor the way back publishes an event or
// writes an entry, and each finds in order what the other left.
func TestUpgradeAlonePublishesNothing(t *testing.T) {
	t.Parallel()
	servers := must[*testenv.NATS](t)(testenv.StartNATS(t.Context(), testenv.NATSOptions{Logf: t.Logf}))
	t.Cleanup(func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	})
	w := newWorldAt(t, servers.URL())
	older, newer := w.programs()
	options := w.options(servers.URL())
	random := rand.New(rand.NewPCG(7, 7))
	exists := map[string]bool{}
	// ends are the last sequences of stream and bucket.
	ends := func() [2]uint64 {
		return [2]uint64{w.lastSequence(), w.stream(subjects.BucketStream(subjects.DefaultBucket)).CachedInfo().State.LastSeq}
	}
	for _, p := range []program{older, newer, older, newer} {
		var before [2]uint64
		unchanged := len(exists) > 0
		if unchanged {
			before = ends()
		}
		r := w.serve(p, options...)
		if unchanged {
			eventually(t, "verify finds no difference", func() error { return w.verifies(p, options) })
			if after := ends(); after != before {
				t.Fatalf("the start of the %s one moved the ends of stream and bucket from %d to %d: %v", p.name, before, after, w.events(before[0]))
			}
		}
		for i := range 60 {
			app := w.app(fmt.Sprintf("app-%d", i%8))
			must[any](t)(nil, w.change(app, exists, random))
		}
		eventually(t, "verify finds no difference", func() error { return w.verifies(newer, options) })
		w.converged(w.events(0))
		must[any](t)(nil, r.Stop(patience))
	}
}
