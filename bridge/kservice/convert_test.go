package kservice_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestConvertIsPureAndDeterministic(t *testing.T) {
	svc, rev := sampleService(), sampleRevision()
	managedAt(svc, 5)
	// A spec with maps, whose order on the wire is free.
	labels := map[string]string{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		labels[key] = key
	}
	wire, err := proto.Marshal(&appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{
		Metadata: &appv1.K8SObjectMetadata{Labels: labels, Annotations: labels},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	svc.Annotations[kservice.AnnotationSpec] = base64.StdEncoding.EncodeToString(wire)
	svcBefore, revBefore := svc.DeepCopy(), rev.DeepCopy()

	var first []byte
	for range 50 {
		app, err := kservice.Convert(svc, rev, sampleConfig())
		if err != nil {
			t.Fatal(err)
		}
		got, err := proto.MarshalOptions{Deterministic: true}.Marshal(app)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatalf("got %x, want %x as before", got, first)
		}
		// What a caller does to the App must not reach the object.
		app.Spec.GetPod().Metadata.Labels["a"] = "other"
		app.Status.Conditions[0].Message = "other"
		app.Metadata.Id.Name = "other"
	}
	if !reflect.DeepEqual(svc, svcBefore) || !reflect.DeepEqual(rev, revBefore) {
		t.Error("Convert changed its input")
	}
}

func TestConvertStoppedDoesNotTouchTheAnnotation(t *testing.T) {
	svc := sampleService()
	svc.Labels[kservice.LabelStopped] = "true"
	app, err := kservice.Convert(svc, sampleRevision(), sampleConfig())
	if err != nil {
		t.Fatal(err)
	}
	want := &appv1.Status{Conditions: []*appv1.Condition{{
		DeploymentStatus:   appv1.Status_DEPLOYMENT_STATUS_STOPPED,
		Message:            "App scaled to zero",
		LastTransitionTime: timestamppb.New(svc.CreationTimestamp.Add(20 * time.Second)),
	}}}
	if !proto.Equal(app.GetStatus(), want) {
		t.Errorf("status:\n got %v\nwant %v", app.GetStatus(), want)
	}
	if got, want := app.GetSpec().GetDesiredState(), appv1.Spec_DESIRED_STATE_STOPPED; got != want {
		t.Errorf("desired state: got %v, want %v", got, want)
	}
	if got, want := svc.Annotations[kservice.AnnotationSpec], "CggKAWk6AwiQPw=="; got != want {
		t.Errorf("annotation: got %q, want %q", got, want)
	}
}

// A clock is never asked: the same object is the same App at any time.
func TestConvertTimesComeFromTheObject(t *testing.T) {
	created := sampleService().CreationTimestamp.Time
	tests := []struct {
		name   string
		change func(svc *kservice.Service)
		want   *timestamppb.Timestamp
	}{
		{"ready", func(*kservice.Service) {}, timestamppb.New(created.Add(20 * time.Second))},
		{"ready at the epoch", func(svc *kservice.Service) {
			svc.Status.Conditions[1].LastTransitionTime = kservice.Time{Time: time.Unix(0, 0)}
		}, timestamppb.New(time.Unix(0, 0))},
		{"ready without time", func(svc *kservice.Service) {
			svc.Status.Conditions[1].LastTransitionTime = kservice.Time{}
		}, timestamppb.New(created)},
		{"the first of two", func(svc *kservice.Service) {
			svc.Status.Conditions[1].LastTransitionTime = kservice.Time{}
			svc.Status.Conditions[0].Type = "Ready"
		}, timestamppb.New(created.Add(10 * time.Second))},
		{"no ready", func(svc *kservice.Service) { svc.Status.Conditions[1].Type = "Other" }, timestamppb.New(created)},
		{"neither", func(svc *kservice.Service) {
			svc.Status.Conditions[1].LastTransitionTime = kservice.Time{}
			svc.CreationTimestamp = metav1.Time{}
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := sampleService()
			tt.change(svc)
			app, err := kservice.Convert(svc, nil, sampleConfig())
			if err != nil {
				t.Fatal(err)
			}
			if got := app.GetStatus().GetConditions()[2].GetLastTransitionTime(); !proto.Equal(got, tt.want) {
				t.Errorf("condition without time: got %v, want %v", got, tt.want)
			}
			svc.Labels[kservice.LabelStopped] = "true"
			if app, err = kservice.Convert(svc, nil, sampleConfig()); err != nil {
				t.Fatal(err)
			}
			if got := app.GetStatus().GetConditions()[0].GetLastTransitionTime(); !proto.Equal(got, tt.want) {
				t.Errorf("stopped: got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestConvertCountsOnlyTheLatestReadyRevision(t *testing.T) {
	tests := []struct {
		name   string
		change func(rev *kservice.Revision)
		want   uint32
	}{
		{"that one", func(*kservice.Revision) {}, 3},
		{"another name", func(rev *kservice.Revision) { rev.Name = "n-p-d-00002" }, 0},
		{"another namespace", func(rev *kservice.Revision) { rev.Namespace = "other" }, 0},
		{"no count", func(rev *kservice.Revision) { rev.Status.ActualReplicas = nil }, 0},
		{"negative", func(rev *kservice.Revision) { rev.Status.ActualReplicas = new(int32(-1)) }, 4294967295},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rev := sampleRevision()
			tt.change(rev)
			app, err := kservice.Convert(sampleService(), rev, sampleConfig())
			if err != nil {
				t.Fatal(err)
			}
			if got := app.GetStatus().GetCurrentReplicas(); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestConvertCountingCountsTheRevisionThatIsGiven(t *testing.T) {
	other := sampleRevision()
	other.Name = "n-p-d-00000"
	uncounted := sampleRevision()
	uncounted.Status.ActualReplicas = nil
	stopped := sampleService()
	stopped.Labels[kservice.LabelStopped] = "true"
	for _, tt := range []struct {
		name string
		svc  *kservice.Service
		rev  *kservice.Revision
		want uint32
	}{
		{"the one that is named", sampleService(), sampleRevision(), 3},
		{"another one", sampleService(), other, 3},
		{"none", sampleService(), nil, 0},
		{"no count", sampleService(), uncounted, 0},
		{"stopped", stopped, other, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := kservice.ConvertCounting(tt.svc, tt.rev, sampleConfig())
			if err != nil {
				t.Fatal(err)
			}
			want, err := kservice.Convert(tt.svc, nil, sampleConfig())
			if err != nil {
				t.Fatal(err)
			}
			want.Status.CurrentReplicas = tt.want // and nothing else
			if !proto.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestID(t *testing.T) {
	tests := []struct {
		name, annotation string
		missing          bool
		want             subjects.AppID
		wantErr          error
	}{
		{name: "plain", annotation: "p/d/n", want: subjects.AppID{Project: "p", Domain: "d", Name: "n"}},
		{name: "slashes in the name", annotation: "p/d/n/o/", want: subjects.AppID{Project: "p", Domain: "d", Name: "n/o/"}},
		{name: "empty parts", annotation: "//", want: subjects.AppID{}},
		{name: "not trimmed", annotation: " p / d/n ", want: subjects.AppID{Project: " p ", Domain: " d", Name: "n "}},
		{name: "missing", missing: true, wantErr: kservice.ErrNoAppID},
		{name: "empty", annotation: "", wantErr: kservice.ErrMalformedAppID},
		{name: "two parts", annotation: "p/d", wantErr: kservice.ErrMalformedAppID},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := sampleService()
			svc.Annotations[kservice.AnnotationAppID] = tt.annotation
			if tt.missing {
				delete(svc.Annotations, kservice.AnnotationAppID)
			}
			got, err := kservice.ID(svc)
			if got != tt.want || !errors.Is(err, tt.wantErr) {
				t.Errorf("got %+v, %v, want %+v, %v", got, err, tt.want, tt.wantErr)
			}
			app, err := kservice.Convert(svc, nil, sampleConfig())
			if !errors.Is(err, tt.wantErr) || (app == nil) != (tt.wantErr != nil) {
				t.Errorf("Convert: got %v, %v, want error %v", app, err, tt.wantErr)
			}
		})
	}
}

func TestNameCutInsideACharacter(t *testing.T) {
	// 53 bytes, then a character of two that the cut at 54 splits.
	id := subjects.AppID{Project: "P", Domain: "D", Name: string(bytes.Repeat([]byte("a"), 53)) + "éééé"}
	want := string(bytes.Repeat([]byte("a"), 53)) + "\xc3-"
	got := kservice.Name(id)
	if len(got) != 63 || got[:55] != want {
		t.Errorf("name: got %q, want 63 bytes that begin with %q", got, want)
	}
	url := kservice.PublicURL(id, kservice.Config{BaseDomain: "Apps.Example.com", Scheme: "HTTP", Port: 8080})
	if want := "HTTP://" + got[:53] + "\ufffd" + got[54:] + ".apps.example.com:8080"; url != want {
		t.Errorf("public URL: got %q, want %q", url, want)
	}
	// The hash is over the id as written, so case makes a difference.
	if other := kservice.Name(subjects.AppID{Project: "p", Domain: "d", Name: id.Name}); other[:54] != got[:54] || other == got {
		t.Errorf("name in another case: got %q, want it to differ from %q in the hash alone", other, got)
	}
}

func TestReplicas(t *testing.T) {
	pod := func(name string, labels map[string]string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}
	}
	pods := []corev1.Pod{
		pod("c", map[string]string{kservice.LabelService: "n-p-d", kservice.LabelRevision: "n-p-d-00001"}),
		pod("b", map[string]string{kservice.LabelService: "n-p-d", kservice.LabelRevision: "n-p-d-00002"}),
		pod("a", map[string]string{kservice.LabelService: "n-p-d", kservice.LabelRevision: "n-p-d-00001"}),
		pod("d", map[string]string{kservice.LabelService: "other", kservice.LabelRevision: "n-p-d-00001"}),
	}
	notReady := sampleService()
	notReady.Status.LatestReadyRevisionName = ""
	// The pods of a Service of the same name that is gone carry its uid.
	labelled := sampleService()
	labelled.Name, labelled.Status.LatestReadyRevisionName = "u-p-d", "u-p-d-00001"
	for name, uid := range map[string]string{"own": string(labelled.UID), "another": "another-uid", "without": ""} {
		labels := map[string]string{kservice.LabelService: "u-p-d", kservice.LabelRevision: "u-p-d-00001", kservice.LabelServiceUID: uid}
		if uid == "" {
			delete(labels, kservice.LabelServiceUID)
		}
		pods = append(pods, pod(name, labels))
	}
	labelledNotReady := *labelled
	labelledNotReady.Status.LatestReadyRevisionName = ""
	tests := []struct {
		name string
		svc  *kservice.Service
		want []string
	}{
		{"latest ready revision", sampleService(), []string{"a", "c"}},
		{"none ready", notReady, []string{"a", "b", "c"}},
		{"by the name alone", &kservice.Service{ObjectMeta: metav1.ObjectMeta{Name: "n-p-d"}}, []string{"a", "b", "c"}},
		{"another uid", labelled, []string{"own", "without"}},
		{"another uid, none ready", &labelledNotReady, []string{"own", "without"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := &appv1.Identifier{Org: "o", Project: "p", Domain: "d", Name: "n"}
			var got []string
			for _, replica := range kservice.Replicas(id, tt.svc, pods) {
				got = append(got, replica.GetMetadata().GetId().GetName())
				if appID := replica.GetMetadata().GetId().GetAppId(); !proto.Equal(appID, id) || appID == id {
					t.Errorf("app id: got %v, want a copy of %v", appID, id)
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
