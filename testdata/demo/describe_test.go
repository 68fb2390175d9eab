package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func sample(image string, replicas uint32, conditions ...*appv1.Condition) *appv1.App {
	return &appv1.App{
		Spec:   &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{Image: image}}},
		Status: &appv1.Status{CurrentReplicas: replicas, Conditions: conditions},
	}
}

func condition(status appv1.Status_DeploymentStatus, message string) *appv1.Condition {
	return &appv1.Condition{DeploymentStatus: status, Message: message}
}

func TestDescribe(t *testing.T) {
	var (
		active    = condition(appv1.Status_DEPLOYMENT_STATUS_ACTIVE, "Service is ready")
		pending   = condition(appv1.Status_DEPLOYMENT_STATUS_PENDING, "Configuration is ready")
		waiting   = condition(appv1.Status_DEPLOYMENT_STATUS_PENDING, "Deploying: pulling\nthe image")
		deploying = condition(appv1.Status_DEPLOYMENT_STATUS_DEPLOYING, "Routes are ready")
		failed    = condition(appv1.Status_DEPLOYMENT_STATUS_FAILED, "RevisionFailed: "+strings.Repeat("x", 200))
	)
	for _, tc := range []struct {
		name     string
		kind     subjects.EventKind
		old, app *appv1.App
		header   nats.Header
		want     string
	}{
		{name: "created", kind: subjects.Created, app: sample("r/i:1", 0), want: "image i:1, status none"},
		{name: "deleted", kind: subjects.Deleted, app: sample("r/i:1", 0, active), want: "last status ACTIVE"},
		{
			name: "the least well condition counts", kind: subjects.Updated,
			old: sample("i", 0, active, active), app: sample("i", 0, active, pending, deploying),
			want: "status ACTIVE -> PENDING",
		},
		{name: "scaled", kind: subjects.Updated, old: sample("i", 0, active), app: sample("i", 3, active), want: "replicas 0 -> 3"},
		{name: "image", kind: subjects.Updated, old: sample("r/i:1", 1, active), app: sample("r/i:2", 1, active), want: "image i:1 -> i:2"},
		{
			name: "a message alone", kind: subjects.Updated,
			old: sample("i", 0, pending), app: sample("i", 0, waiting), want: "message: Deploying: pulling the image",
		},
		{
			name: "a long message", kind: subjects.Updated, old: sample("i", 0), app: sample("i", 0, failed),
			want: "status none -> FAILED, message: RevisionFailed: " + strings.Repeat("x", 64) + "...",
		},
		{name: "nothing", kind: subjects.Updated, old: sample("i", 0, active), app: sample("i", 0, active), want: "nothing of the app"},
		{name: "conditions", kind: subjects.Updated, old: sample("i", 0, active), app: sample("i", 0, active, active), want: "conditions"},
		{
			name: "found late", kind: subjects.Deleted, app: sample("i", 0),
			header: nats.Header{subjects.HeaderSynthesized: {"true"}, subjects.HeaderFinalStateUnknown: {"true"}},
			want:   "last status none, found by a resync, last state not observed",
		},
		{
			name: "merged and cut", kind: subjects.Updated, old: sample("i", 0), app: sample("i", 1),
			header: nats.Header{subjects.HeaderMergedUpdates: {"4"}, subjects.HeaderTruncated: {"old_app"}},
			want:   "replicas 0 -> 1, stands for 4 more, without old_app",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := strings.Join(describe(event{kind: tc.kind, old: tc.old, app: tc.app, header: tc.header}), ", ")
			if got != tc.want {
				t.Errorf("describe = %q, want %q", got, tc.want)
			}
		})
	}
}
