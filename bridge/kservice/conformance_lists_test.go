package kservice_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

func runNames(t *testing.T, path string) int {
	cases := corpus.ReadList[corpus.NameCase](t, path)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			want := c.Expect.Value
			name := want.KServiceName
			if want.KServiceNameBase64 != "" {
				raw, err := base64.StdEncoding.DecodeString(want.KServiceNameBase64)
				if err != nil {
					t.Fatal(err)
				}
				name = string(raw)
			}
			id := c.Identifier.AppID()
			if got := kservice.Name(id); got != name {
				t.Errorf("name: got %q, want %q", got, name)
			}
			if (want.PublicURL == "") != want.NoIngress {
				t.Fatalf("the case must expect either a public URL or none: %+v", want)
			}
			if got := kservice.PublicURL(id, c.Config.KService()); got != want.PublicURL {
				t.Errorf("public URL: got %q, want %q", got, want.PublicURL)
			}
			if strings.Contains(id.Project+id.Domain, "/") {
				return // cannot be written as an annotation
			}
			svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{kservice.AnnotationAppID: id.String()},
			}}
			app, err := kservice.Convert(svc, nil, c.Config.KService())
			if err != nil {
				t.Fatal(err)
			}
			ingress := app.GetStatus().GetIngress()
			if got := ingress.GetPublicUrl(); got != want.PublicURL || (ingress == nil) != want.NoIngress {
				t.Errorf("ingress: got %v, want %+v", ingress, want)
			}
		})
	}
	return len(cases)
}

func runPodStatus(t *testing.T, path string) int {
	type podCase struct {
		Name   string          `json:"name"`
		Pod    json.RawMessage `json:"pod"`
		Expect corpus.Strict[struct {
			Status string `json:"status"`
			Reason string `json:"reason"`
		}] `json:"expect"`
	}
	cases := corpus.ReadList[podCase](t, path)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			status, reason := kservice.PodStatus(decode[*corev1.Pod](t, c.Pod))
			if want := c.Expect.Value; status != want.Status || reason != want.Reason {
				t.Errorf("got %q %q, want %q %q", status, reason, want.Status, want.Reason)
			}
		})
	}
	return len(cases)
}

func runReplicas(t *testing.T, path string) int {
	cases := corpus.ReadList[corpus.ReplicasCase](t, path)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			// Without the Service, Flyte matches by its name alone.
			svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{Name: kservice.Name(c.Identifier.AppID())}}
			for _, candidate := range decodeAll[*kservice.Service](t, c.KServices) {
				if candidate.Namespace == corpus.Namespace && candidate.Name == kservice.Name(c.Identifier.AppID()) {
					svc = candidate
				}
			}
			var pods []corev1.Pod
			for _, pod := range decodeAll[*corev1.Pod](t, c.Pods) {
				if pod.Namespace == corpus.Namespace {
					pods = append(pods, *pod)
				}
			}
			id := c.Identifier.Message()
			got := kservice.Replicas(id, svc, pods)
			if !proto.Equal(id, c.Identifier.Message()) {
				t.Error("Replicas changed the identifier")
			}
			want := make([]*appv1.Replica, len(c.Expect.Value.Replicas))
			for i, raw := range c.Expect.Value.Replicas {
				want[i] = &appv1.Replica{}
				if err := protojson.Unmarshal(raw, want[i]); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.EqualFunc(got, want, func(a, b *appv1.Replica) bool { return proto.Equal(a, b) }) {
				t.Errorf("\n got %v\nwant %v", got, want)
			}
		})
	}
	return len(cases)
}
