package e2e_test

import (
	"errors"
	"math"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// deadLease makes a Lease whose holder does not exist.
func (w *world) deadLease(change func(*coordinationv1.LeaseSpec)) {
	w.t.Helper()
	now := metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "appbridge"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("dead"), LeaseDurationSeconds: new(int32(15)), AcquireTime: &now, RenewTime: &now, LeaseTransitions: new(int32(1)),
		},
	}
	change(&lease.Spec)
	must[any](w.t)(nil, w.Client.Create(w.t.Context(), lease))
}

// A Lease of a holder that does not exist any more is taken over, whatever its fields are.
func TestDeadHolder(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*coordinationv1.LeaseSpec){
		"as a bridge leaves it":           func(*coordinationv1.LeaseSpec) {},
		"with the longest duration":       func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = new(int32(math.MaxInt32)) },
		"with the highest transitions":    func(s *coordinationv1.LeaseSpec) { s.LeaseTransitions = new(int32(math.MaxInt32)) },
		"with a renewal in a far future":  func(s *coordinationv1.LeaseSpec) { s.RenewTime = &metav1.MicroTime{Time: time.Now().AddDate(90, 0, 0)} },
		"without a duration and any time": func(s *coordinationv1.LeaseSpec) { *s = coordinationv1.LeaseSpec{HolderIdentity: s.HolderIdentity} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.deadLease(change)
			w.create(w.app("one"))
			r := w.launch(w.elected("me"), nil)
			eventually(t, "it leads", func() error {
				if r.metric("appbridge_leader") == 1 {
					return nil
				}
				return errors.Join(errors.New("it does not"), r.bridge.Ready())
			})
			r.waitReady()
			w.waitFor(0, "created one")
		})
	}
}

// A standby that cannot take over the Lease of a holder that does not exist is not ready.
func TestDeadHolderWithoutRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := w.namespace + "-standby"
	bind := func(role string) {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user}}
		must[any](t)(nil, client.IgnoreNotFound(w.Client.Delete(t.Context(), binding)))
		must[any](t)(nil, w.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: binding.ObjectMeta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		}))
	}
	must[any](t)(nil, w.Client.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch", "create"}}},
	}))
	bind("cluster-admin")
	kube := must[*rest.Config](t)(w.User(user))
	kube.QPS = -1
	first := w.start(w.elected("first"))
	standby := w.launch(w.elected("standby"), kube)
	standby.waitReady()
	bind(user)
	must[any](t)(nil, first.stop())
	w.handLease("dead")
	standby.notReady("waiting for the Lease", "cannot update resource")
	bind("cluster-admin")
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	standby.waitReady()
}

// Two installations with streams of their own share a Lease, as two releases in one namespace do by
// default. The one that waits publishes nothing for as long as the other runs: it is not ready and
// names the Lease and the other's stream.
func TestLeaseOfAnotherStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.app("one"))
	first := w.start(w.elected("first"))
	w.waitFor(0, "created one")
	cfg := w.elected("second")
	cfg.Stream, cfg.Bucket, cfg.Prefix = "OTHER_APPS", "other-apps", "other.apps"
	cfg.StandAside = time.Second
	second := w.launch(cfg, nil)
	second.notReady("Lease "+w.namespace+"/appbridge", "FLYTE_APPS", "--lease-name")
	must[any](t)(nil, first.stop())
	second.waitReady()
	if _, err := w.js.Stream(t.Context(), cfg.Stream); err != nil {
		t.Errorf("ready without a stream: %v", err)
	}
}

// A leader that is stopped gives back its own Lease, so that a replica need not wait, and leaves the
// Lease as it is where another one has taken it over.
func TestStopWithAnothersLease(t *testing.T) {
	t.Parallel()
	for _, holder := range []string{"me", "successor"} {
		t.Run(holder, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.start(w.elected("me"))
			w.create(w.app("one"))
			w.waitFor(0, "created one")
			key, want := client.ObjectKey{Namespace: w.namespace, Name: "appbridge"}, ""
			if holder != "me" {
				w.handLease(holder) // and at once, before the leader notices
				want = holder
			}
			if err := r.stop(); err != nil {
				t.Log("stopped:", err)
			}
			lease := &coordinationv1.Lease{}
			must[any](t)(nil, w.Client.Get(t.Context(), key, lease))
			if got := *lease.Spec.HolderIdentity; got != want {
				t.Errorf("the Lease is held by %q, want %q", got, want)
			}
		})
	}
}
