package kservice_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
)

func TestTrimService(t *testing.T) {
	svc := sampleService()
	svc.Labels[kservice.LabelStopped] = "true"
	managedAt(svc, 30)
	managedAt(svc, 40)
	managedAt(svc, -1)
	want := kservice.LastChange(svc)

	out, err := kservice.Trim(svc)
	if err != nil {
		t.Fatal(err)
	}
	if out != any(svc) {
		t.Errorf("got another object than the one given")
	}
	if svc.ManagedFields != nil {
		t.Errorf("managed fields: got %v, want none", svc.ManagedFields)
	}
	if got, want := sortedKeys(svc.Labels), []string{
		kservice.LabelManaged, kservice.LabelStopped, kservice.LabelDomain, kservice.LabelProject,
	}; !slices.Equal(got, want) {
		t.Errorf("labels: got %q, want %q", got, want)
	}
	if got, want := sortedKeys(svc.Annotations), []string{
		kservice.AnnotationAppID, kservice.AnnotationOrg, kservice.AnnotationSpec,
	}; !slices.Equal(got, want) {
		t.Errorf("annotations: got %q, want %q", got, want)
	}
	if got, want := svc.LastChange, svc.CreationTimestamp.Add(40*time.Second); !got.Equal(want) {
		t.Errorf("last change: got %v, want %v", got, want)
	}
	if got := kservice.LastChange(svc); !got.Equal(want) {
		t.Errorf("LastChange after Trim: got %v, want %v", got, want)
	}

	labels, annotations, once := reflect.ValueOf(svc.Labels).Pointer(), reflect.ValueOf(svc.Annotations).Pointer(), svc.DeepCopy()
	if _, err := kservice.Trim(svc); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(svc, once) {
		t.Errorf("a second time:\n got %+v\nwant %+v", svc, once)
	}
	if reflect.ValueOf(svc.Labels).Pointer() != labels || reflect.ValueOf(svc.Annotations).Pointer() != annotations {
		t.Error("a second time wrote to the object")
	}
}

func TestTrimServiceOfOthers(t *testing.T) {
	svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "blue"}}}
	if _, err := kservice.Trim(svc); err != nil {
		t.Fatal(err)
	}
	if svc.Labels != nil || svc.Annotations != nil || !svc.LastChange.IsZero() {
		t.Errorf("got %+v, want nothing left", svc)
	}
}

func TestTrimRevision(t *testing.T) {
	rev := sampleRevision()
	rev.Annotations = map[string]string{"a": "b"}
	rev.Labels = map[string]string{kservice.LabelService: "n-p-d", kservice.LabelServiceUID: "u1"}
	rev.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	rev.OwnerReferences = []metav1.OwnerReference{{Name: "n-p-d"}}
	rev.Finalizers = []string{"f"}
	want := sampleRevision()
	want.Owner = kservice.OwnerOf("u1")
	for range 2 {
		if _, err := kservice.Trim(rev); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(rev, want) {
			t.Errorf("\n got %+v\nwant %+v", rev, want)
		}
	}
}

func TestTrimPassesOthersThrough(t *testing.T) {
	type tombstone struct{ Obj any }
	svc := sampleService()
	in := tombstone{Obj: svc}
	out, err := kservice.Trim(in)
	if err != nil {
		t.Fatal(err)
	}
	if out != any(in) || !reflect.DeepEqual(svc, sampleService()) {
		t.Errorf("got %v, want it unchanged", out)
	}
	if out, err := kservice.Trim(nil); out != nil || err != nil {
		t.Errorf("nil: got %v, %v, want nil", out, err)
	}
}

func TestLastChange(t *testing.T) {
	created := sampleService().CreationTimestamp.Time
	tests := []struct {
		name   string
		change func(svc *kservice.Service)
		want   time.Time
	}{
		{"condition", func(*kservice.Service) {}, created.Add(20 * time.Second)},
		{"creation", func(svc *kservice.Service) { svc.Status.Conditions = nil }, created},
		{"deletion", func(svc *kservice.Service) {
			svc.DeletionTimestamp = new(metav1.NewTime(created.Add(time.Minute)))
		}, created.Add(time.Minute)},
		{"deletion before the last condition", func(svc *kservice.Service) {
			svc.DeletionTimestamp = new(metav1.NewTime(created.Add(time.Second)))
		}, created.Add(20 * time.Second)},
		{"managed fields", func(svc *kservice.Service) {
			managedAt(svc, 50)
			managedAt(svc, 30)
		}, created.Add(50 * time.Second)},
		{"managed fields without time", func(svc *kservice.Service) { managedAt(svc, -1) }, created.Add(20 * time.Second)},
		{"remembered", func(svc *kservice.Service) {
			svc.LastChange = created.Add(time.Hour)
			managedAt(svc, 50)
		}, created.Add(time.Hour)},
		{"nothing", func(svc *kservice.Service) {
			svc.CreationTimestamp = metav1.Time{}
			svc.Status.Conditions = nil
		}, time.Time{}},
		{"another zone", func(svc *kservice.Service) {
			svc.LastChange = created.Add(time.Hour).In(time.FixedZone("x", 3600))
		}, created.Add(time.Hour)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := sampleService()
			tt.change(svc)
			got := kservice.LastChange(svc)
			if !got.Equal(tt.want) || got.Location() != time.UTC {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func sortedKeys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m))
}
