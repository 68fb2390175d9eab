package appsvc_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

const repositoryRoot = "../.."

// TestConformance plays the parts of the corpus that are about operations through
// the service.
func TestConformance(t *testing.T) {
	dir := corpus.Dir(repositoryRoot)
	for _, part := range []struct {
		name string
		run  func(t *testing.T, path string) int
	}{
		{"names.json", conformNames},
		{"list.json", conformList},
		{"replicas.json", conformReplicas},
		{"deploy.json", conformDeploy},
	} {
		t.Run(strings.TrimSuffix(part.name, ".json"), func(t *testing.T) {
			cases := part.run(t, filepath.Join(dir, part.name))
			if cases == 0 {
				t.Errorf("%s is empty", part.name)
			}
			t.Logf("conformance: %s: %d cases", part.name, cases)
		})
	}
}

// requestFor asks for the app under its whole identifier.
func requestFor(id corpus.ID) *appv1.GetRequest {
	return &appv1.GetRequest{Identifier: &appv1.GetRequest_AppId{AppId: id.Message()}}
}

func decodeJSON[T any](t *testing.T, raw []byte) *T {
	t.Helper()
	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		t.Fatalf("decode a %T: %v", out, err)
	}
	return out
}

// trimmed is a Knative Service as the informers keep it.
func trimmed(t *testing.T, raw []byte) *kservice.Service {
	t.Helper()
	svc := decodeJSON[kservice.Service](t, raw)
	if _, err := kservice.Trim(svc); err != nil {
		t.Fatal(err)
	}
	return svc
}

func conformNames(t *testing.T, path string) int {
	cases := corpus.ReadList[corpus.NameCase](t, path)
	worlds := map[corpus.Config]*world{}
	asked := 0
	for _, c := range cases {
		if c.Identifier.AppID().Validate() != nil {
			continue // an empty part has no subject
		}
		w := worlds[c.Config]
		if w == nil {
			w = serve(t, func(s *setup) {
				s.kube, s.cfg.App = untouchable(t), c.Config.KService()
			})
			worlds[c.Config] = w
		}
		asked++
		t.Run(c.Name, func(t *testing.T) {
			w.t = t
			var request proto.Message
			if message := requestFor(c.Identifier); proto.Size(message) > 0 {
				request = message
			}
			got := read(w, w.json(w.subject(subjects.APIIngress, c.Identifier.AppID()), request), &appv1.Ingress{})
			want := &appv1.Ingress{PublicUrl: c.Expect.Value.PublicURL}
			if !proto.Equal(got, want) || c.Expect.Value.NoIngress != (got.GetPublicUrl() == "") {
				t.Errorf("got %v, want %+v", got, c.Expect.Value)
			}
		})
		w.t = t
	}
	return asked
}

func conformList(t *testing.T, path string) int {
	cases := corpus.ReadList[corpus.ListCase](t, path)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			cache := &memory{}
			for _, raw := range c.KServices {
				if svc := trimmed(t, raw); svc.Namespace == corpus.Namespace {
					cache.add(svc)
				}
			}
			w := serve(t, func(s *setup) { s.cache, s.kube = cache, untouchable(t) })
			subject, err := w.names.APIList(c.Project, c.Domain)
			request := &appv1.ListRequest{}
			if err != nil { // a domain of any project
				subject = w.listSubject("", "")
				request.FilterBy = &appv1.ListRequest_Project{Project: &appv1.ProjectIdentifier{Name: c.Project, Domain: c.Domain}}
			}
			for _, limit := range []uint32{0, 1, 2} {
				var got []string
				request.Request = &appv1.CommonListRequest{Limit: limit}
				for {
					page, _ := w.page(subject, request)
					got = append(got, listed(page)...)
					if limit > 0 && len(page.GetApps()) > int(limit) {
						t.Errorf("%d apps on a page of %d", len(page.GetApps()), limit)
					}
					if page.GetToken() == "" || len(got) > len(c.KServices) {
						break
					}
					request.Request.Token = page.GetToken()
				}
				slices.Sort(got)
				if !slices.Equal(got, c.Expect) {
					t.Errorf("pages of %d:\n got %q\nwant %q", limit, got, c.Expect)
				}
			}
		})
	}
	return len(cases)
}

func conformReplicas(t *testing.T, path string) int {
	cases := corpus.ReadList[corpus.ReplicasCase](t, path)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			cache := &memory{}
			for _, raw := range c.KServices {
				if svc := trimmed(t, raw); svc.Namespace == corpus.Namespace {
					cache.add(svc)
				}
			}
			for _, raw := range c.Pods {
				cache.pods = append(cache.pods, *decodeJSON[corev1.Pod](t, raw))
			}
			w := serve(t, func(s *setup) { s.cache, s.kube = cache, untouchable(t) })
			list := read(w, w.json(w.subject(subjects.APIReplicas, c.Identifier.AppID()), requestFor(c.Identifier)), &appv1.ReplicaList{})
			want := &appv1.ReplicaList{}
			for _, raw := range c.Expect.Value.Replicas {
				replica := &appv1.Replica{}
				if err := protojson.Unmarshal(raw, replica); err != nil {
					t.Fatal(err)
				}
				want.Items = append(want.Items, replica)
			}
			if !proto.Equal(list, want) {
				t.Errorf("\n got %v\nwant %v", list, want)
			}
		})
	}
	return len(cases)
}
