package audit_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// world is a cluster and a bridge without a fault: every change is noted as the
// truth and told as a step, which render makes an event of.
type world struct {
	t       testing.TB
	version int
	uids    int
	now     time.Time
	changes []audit.Change
	gaps    []audit.Gap
	steps   []*step
	apps    []*app
	away    bool // a gap: nothing is told
	losses  []loss
	bucket  bool // what follows a removed event goes on from the bucket

	// Of the rendering:
	form   string             // content type; empty: JSON
	frozen int                // the step of checkout at which the bucket stops, if not 0
	final  func(*audit.Input) // the last thing to happen
}

// app is an app with its Knative Service and Revision as they are now.
type app struct {
	w    *world
	id   subjects.AppID
	name string
	note string // names the steps that follow

	exists, managed, stopped bool
	uid, version             string
	generation, edits        int
	created                  time.Time
	object                   *unstructured.Unstructured
	ready                    string // the latest ready Revision
	revisions                map[string]*kservice.Revision

	merging bool  // updates merge into the newest
	told    *step // the newest
}

// step is one thing that the bridge tells.
type step struct {
	app       *app
	note      string
	at        time.Time
	truncated string
	kind      subjects.EventKind // empty: as follows from the step before
	remove    bool
	uid       string
	service   *kservice.Service
	rev       *kservice.Revision

	deletedVersion    string
	synthesized, lost bool
	merged            int
	first             bool
	waiting           bool                 // so that the next may merge into it
	again             bool                 // stored a second time
	taken             bool                 // by a rollback
	removed           bool                 // before it was projected
	forgotten         bool                 // the events before it are not known
	change            func(*appv1.App)     // of the App that is told
	message           func(*audit.Message) // of the finished event
}

func newWorld(t testing.TB) *world {
	return &world{t: t, version: 100, now: time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC)}
}

// tick is the next version; a second passes with it.
func (w *world) tick() string {
	w.version++
	w.now = w.now.Add(time.Second)
	return strconv.Itoa(w.version)
}

func (w *world) app(name string) *app {
	a := &app{
		w: w, id: subjects.AppID{Project: "shop", Domain: "production", Name: name}, name: name,
		revisions: map[string]*kservice.Revision{},
	}
	w.apps = append(w.apps, a)
	return a
}

// create makes the object anew, with another uid.
func (a *app) create() {
	a.w.uids++
	a.exists, a.managed, a.stopped = true, true, false
	a.uid = fmt.Sprintf("u%d", a.w.uids)
	a.generation, a.ready, a.created = 0, "", a.w.now
	a.edit()
}

// edit is the next version of the object.
func (a *app) edit() {
	a.generation++
	a.edits++
	a.write(a.w.tick())
}

// write notes the object as it is now and tells it.
func (a *app) write(version string) {
	a.version = version
	spec, err := proto.Marshal(&appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{Image: fmt.Sprintf("registry.example.com/%s:%d", a.name, a.edits)}}})
	if err != nil {
		a.w.t.Fatal(err)
	}
	labels := map[string]any{"flyte.org/app-name": a.name}
	if a.managed {
		labels[kservice.LabelManaged] = "true"
	}
	if a.stopped {
		labels[kservice.LabelStopped] = "true"
	}
	a.object = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": map[string]any{
			"namespace": "flyte", "name": a.name, "uid": a.uid, "resourceVersion": version, "generation": int64(a.generation),
			"creationTimestamp": a.created.Format(time.RFC3339),
			"labels":            labels,
			"annotations":       map[string]any{kservice.AnnotationAppID: a.id.String(), kservice.AnnotationSpec: base64.StdEncoding.EncodeToString(spec)},
			"managedFields":     []any{map[string]any{"manager": "kubectl", "operation": "Update", "time": a.w.now.Format(time.RFC3339), "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{}}}},
		},
		"spec": map[string]any{"template": map[string]any{}},
		"status": map[string]any{
			"latestReadyRevisionName": a.ready, "latestCreatedRevisionName": a.ready,
			"conditions": []any{map[string]any{
				"type": "Ready", "status": "True", "message": fmt.Sprintf("edit %d", a.edits),
				"lastTransitionTime": a.created.Format(time.RFC3339),
			}},
		},
	}}
	a.w.changes = append(a.w.changes, audit.Change{
		Kind: audit.KindService, Namespace: "flyte", Name: a.name, UID: types.UID(a.uid), ResourceVersion: version, Object: a.object, At: a.w.now,
	})
	a.settle("")
}

// scale gives the latest ready Revision a number of replicas.
func (a *app) scale(replicas int32) {
	version := a.w.tick()
	rev := &kservice.Revision{}
	rev.Namespace, rev.Name, rev.ResourceVersion = "flyte", a.ready, version
	rev.Status.ActualReplicas = &replicas
	a.revisions[a.ready] = rev
	a.revisionChange(version, false, replicas)
}

func (a *app) dropRevision() {
	if a.revisions[a.ready] == nil {
		return
	}
	delete(a.revisions, a.ready)
	a.revisionChange(a.w.tick(), true, 0)
}

func (a *app) revisionChange(version string, deleted bool, replicas int32) {
	a.w.changes = append(a.w.changes, audit.Change{
		Kind: audit.KindRevision, Namespace: "flyte", Name: a.ready, UID: "r", ResourceVersion: version, Deleted: deleted, At: a.w.now,
		Object: &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"namespace": "flyte", "name": a.ready, "resourceVersion": version},
			"status":   map[string]any{"actualReplicas": int64(replicas)},
		}},
	})
	a.settle("")
}

// roll makes the next Revision, and then the Service name it.
func (a *app) roll(replicas int32) {
	next := fmt.Sprintf("%s-%05d", a.name, a.edits)
	a.ready = next
	version := a.w.tick()
	rev := &kservice.Revision{}
	rev.Namespace, rev.Name, rev.ResourceVersion = "flyte", next, version
	rev.Status.ActualReplicas = &replicas
	a.revisions[next] = rev
	a.w.changes = append(a.w.changes, audit.Change{
		Kind: audit.KindRevision, Namespace: "flyte", Name: next, ResourceVersion: version, At: a.w.now,
		Object: &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"actualReplicas": int64(replicas)}}},
	})
	a.edit()
}

func (a *app) stop(stopped bool)  { a.stopped = stopped; a.edit() }
func (a *app) label(managed bool) { a.managed = managed; a.edit() }

func (a *app) delete() {
	a.exists = false
	version := a.w.tick()
	a.w.changes = append(a.w.changes, audit.Change{
		Kind: audit.KindService, Namespace: "flyte", Name: a.name, UID: types.UID(a.uid), ResourceVersion: version, Deleted: true, Object: a.object, At: a.w.now,
	})
	a.settle(version)
}

// settle tells what has changed, as the bridge's source does.
func (a *app) settle(deleted string) {
	if a.w.away {
		return
	}
	there := a.exists && a.managed
	told := a.told != nil && !a.told.remove
	if !there {
		if told {
			if deleted == "" {
				deleted = a.version
			}
			a.tell(&step{remove: true, uid: a.told.uid, deletedVersion: deleted})
		}
		return
	}
	next := a.state()
	switch {
	case !told:
		next.first = true
	case a.told.service.ResourceVersion == a.version && replicas(a.told) == replicas(next):
		return
	}
	a.tell(next)
}

func (a *app) state() *step {
	svc := &kservice.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.object.Object, svc); err != nil {
		a.w.t.Fatal(err)
	}
	if _, err := kservice.Trim(svc); err != nil {
		a.w.t.Fatal(err)
	}
	return &step{uid: a.uid, service: svc, rev: a.revisions[a.ready]}
}

func replicas(s *step) int32 {
	if s.rev == nil || kservice.Stopped(s.service) {
		return 0
	}
	return *s.rev.Status.ActualReplicas
}

func (a *app) tell(s *step) {
	s.waiting = a.merging
	s.app, s.at, s.note = a, a.w.now.Add(50*time.Millisecond), a.note
	if last := a.told; a.merging && last != nil && last.waiting && !last.remove && !s.remove && !last.first && !s.first {
		s.merged, s.synthesized = last.merged+1, last.synthesized
		i := len(a.w.steps) - 1
		for a.w.steps[i] != last {
			i--
		}
		a.w.steps = slices.Delete(a.w.steps, i, i+1)
	}
	a.w.steps = append(a.w.steps, s)
	a.told = s
}

// gap runs do while the bridge is away, and then tells the net difference.
func (w *world) gap(do func()) {
	w.now = w.now.Add(5 * time.Second)
	from := w.now
	w.away = true
	do()
	w.away = false
	w.now = w.now.Add(5 * time.Second)
	w.gaps = append(w.gaps, audit.Gap{From: from, To: w.now, Why: "the bridge was killed"})
	w.compare()
	w.now = w.now.Add(5 * time.Second)
}

// compare publishes the net difference between what was published and what is.
func (w *world) compare() {
	for _, a := range w.apps {
		there, told := a.exists && a.managed, a.told != nil && !a.told.remove
		if told && (!there || a.told.uid != a.uid) {
			a.tell(&step{remove: true, uid: a.told.uid, synthesized: true, lost: true})
			told = false
		}
		if !there {
			continue
		}
		next := a.state()
		next.synthesized, next.first = true, !told
		if !told || a.told.service.ResourceVersion != a.version || replicas(a.told) != replicas(next) {
			a.tell(next)
		}
	}
}

// random does something that can be done to the app.
func (a *app) random(rng *rand.Rand) {
	if !a.exists {
		a.create()
		return
	}
	switch n := rng.IntN(20); {
	case n < 6:
		a.edit()
	case n < 8 || a.ready == "":
		a.roll(rng.Int32N(3))
	case n < 13:
		a.scale(rng.Int32N(4))
	case n < 14:
		a.dropRevision()
	case n < 16:
		a.stop(!a.stopped)
	case n < 18:
		a.label(!a.managed)
	default:
		a.delete()
	}
}
