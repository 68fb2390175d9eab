package player

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// object is a Knative Service as the cluster has it. Immutable.
type object struct {
	uid        string
	version    uint64
	generation int
	status     string
	changed    time.Time
	app        *appv1.App
}

// cluster makes objects. It is not safe for use by several goroutines.
type cluster struct {
	rand    *rand.Rand
	version uint64
	uids    int
	clock   time.Time
	ids     []subjects.AppID
	objects map[subjects.AppID]*object // those that exist
}

// awkward are names with bytes that a subject cannot hold, and names that look like parts of ours.
var awkward = []string{"checkout", "v1.2", "a=b", "café", "*", "lost", "notice", "events", "deleted", "x y", "_", "-"}

func newCluster(r *rand.Rand) *cluster {
	c := &cluster{rand: r, version: 100, clock: time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC), objects: map[subjects.AppID]*object{}}
	projects, domains := []string{"shop", "lost", "bank"}, []string{"production", "development"}
	for range 1 + r.IntN(10) {
		c.ids = append(c.ids, subjects.AppID{
			Project: projects[r.IntN(len(projects))], Domain: domains[r.IntN(len(domains))], Name: awkward[r.IntN(len(awkward))],
		})
	}
	return c
}

func (c *cluster) pick() subjects.AppID { return c.ids[c.rand.IntN(len(c.ids))] }

var statuses = map[string]appv1.Status_DeploymentStatus{
	"ACTIVE": appv1.Status_DEPLOYMENT_STATUS_ACTIVE, "PENDING": appv1.Status_DEPLOYMENT_STATUS_PENDING,
	"FAILED": appv1.Status_DEPLOYMENT_STATUS_FAILED, "STOPPED": appv1.Status_DEPLOYMENT_STATUS_STOPPED,
}

var words = []string{"ACTIVE", "ACTIVE", "PENDING", "FAILED", "STOPPED", ""}

// change makes the next version of an app, or its first.
func (c *cluster) change(id subjects.AppID) *object {
	before := c.objects[id]
	c.version += 1 + uint64(c.rand.IntN(3))
	c.clock = c.clock.Add(time.Duration(1+c.rand.IntN(5000)) * time.Millisecond)
	next := &object{version: c.version, status: words[c.rand.IntN(len(words))], changed: c.clock}
	if before == nil {
		c.uids++
		next.uid = fmt.Sprintf("00000000-0000-4000-8000-%012d", c.uids)
		next.app = &appv1.App{
			Metadata: &appv1.Meta{Id: &appv1.Identifier{Org: "acme", Project: id.Project, Domain: id.Domain, Name: id.Name}},
			Spec:     &appv1.Spec{ClusterPool: "pool-" + strconv.Itoa(c.uids), DesiredState: appv1.Spec_DESIRED_STATE_ACTIVE},
			Status:   &appv1.Status{CreatedAt: timestamppb.New(c.clock), K8SMetadata: &appv1.K8SMetadata{Namespace: "flyte"}},
		}
	} else {
		next.uid, next.generation = before.uid, before.generation
		next.app = proto.CloneOf(before.app)
	}
	next.generation++
	next.app.Metadata.Revision = c.version
	next.app.Status.CurrentReplicas = uint32(c.rand.IntN(4))
	next.app.Status.Conditions = []*appv1.Condition{{
		LastTransitionTime: timestamppb.New(c.clock), Revision: c.version, DeploymentStatus: statuses[next.status],
		Message: "version " + strconv.FormatUint(c.version, 10),
	}}
	c.objects[id] = next
	return next
}

// remove deletes an app.
func (c *cluster) remove(id subjects.AppID) {
	c.version += 1 + uint64(c.rand.IntN(3))
	c.clock = c.clock.Add(time.Duration(1+c.rand.IntN(5000)) * time.Millisecond)
	delete(c.objects, id)
}
