package appsvc_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// addAs puts an app into the cache with a status and the second of its creation.
func (m *memory) addAs(t *testing.T, name, status string, created int64) {
	t.Helper()
	svc := cached(t, subjects.AppID{Project: "p", Domain: "d", Name: name})
	svc.CreationTimestamp = metav1.Unix(created, 0)
	svc.Labels = maps.Clone(svc.Labels)
	svc.Status.Conditions = nil
	switch ready := map[string]string{"ACTIVE": "True", "FAILED": "False", "PENDING": "Unknown"}[status]; {
	case ready != "":
		svc.Status.Conditions = []kservice.Condition{{Type: kservice.ConditionReady, Status: ready}}
	case status == "STOPPED":
		svc.Labels[kservice.LabelStopped] = "true"
	case status != "UNSPECIFIED":
		t.Fatalf("no app has the status %s", status)
	}
	m.add(svc)
	if entry, _ := m.App(subjects.AppID{Project: "p", Domain: "d", Name: name}); entry.Service.Status != strings.TrimPrefix(status, "UNSPECIFIED") {
		t.Fatalf("%s has the status %q, want %q", name, entry.Service.Status, status)
	}
}

// mixed has apps of which neither names nor times nor statuses are in the order of the Services.
func mixed(t *testing.T) *memory {
	t.Helper()
	cache := &memory{}
	cache.addAs(t, "c", "ACTIVE", 5)
	cache.addAs(t, "B", "FAILED", 1)
	cache.addAs(t, "a", "STOPPED", 5)
	cache.addAs(t, "E", "ACTIVE", 3)
	cache.addAs(t, "d", "PENDING", 4)
	cache.addAs(t, "f", "UNSPECIFIED", 2)
	return cache
}

// request is the request of a list, in JSON.
func listing(t *testing.T, request string) *appv1.ListRequest {
	t.Helper()
	r := &appv1.ListRequest{}
	if err := protojson.Unmarshal([]byte(request), r); err != nil {
		t.Fatal(err)
	}
	if r.Request == nil {
		r.Request = &appv1.CommonListRequest{}
	}
	return r
}

// names are the names of all apps of a list, read in pages; between is called between two of them.
func (w *world) pages(request *appv1.ListRequest, limit uint32, between func()) (names string) {
	w.t.Helper()
	request.Request.Limit, request.Request.Token = limit, ""
	for range 1000 {
		page, _ := w.page(w.listSubject("p", ""), request)
		for _, app := range page.GetApps() {
			names += app.GetMetadata().GetId().GetName()
		}
		if request.Request.Token = page.GetToken(); request.Request.Token == "" {
			return names
		}
		if between != nil {
			between()
		}
	}
	w.t.Fatal("the list has no end")
	return ""
}

func TestListOrders(t *testing.T) {
	t.Parallel()
	cache := mixed(t)
	w := serve(t, func(s *setup) { s.cache = cache })
	for _, test := range []struct{ name, request, want string }{
		{"of Services", `{}`, "aBcdEf"},
		{"name", `{"request": {"sortBy": {"key": "name", "direction": "ASCENDING"}}}`, "BEacdf"},
		{"name, descending", `{"request": {"sortBy": {"key": "name", "direction": "DESCENDING"}}}`, "fdcaEB"},
		{"as Flyte's command line by default", `{"request": {"sortBy": {"key": "created_at", "direction": "ASCENDING"}}}`, "BfEdac"},
		{"creation time, descending as by default in protobuf", `{"request": {"sortBy": {"key": "created_at"}}}`, "acdEfB"},
		{"status", `{"request": {"sortBy": {"key": "status_phase", "direction": "ASCENDING"}}}`, "cEBdaf"},
		{"status, descending", `{"request": {"sortBy": {"key": "status", "direction": "DESCENDING"}}}`, "fadBcE"},
		{"fields", `{"request": {"sortBy": {"key": "name"}, "sortByFields": [{"key": "status_phase", "direction": "ASCENDING"}, {"key": "created_at", "direction": "ASCENDING"}]}}`, "EcBdaf"},
		{"status", `{"request": {"filters": [{"function": "EQUAL", "field": "status_phase", "values": ["DEPLOYMENT_STATUS_ACTIVE"]}]}}`, "cE"},
		{"statuses", `{"request": {"filters": [{"function": "VALUE_IN", "field": "status_phase", "values": ["DEPLOYMENT_STATUS_STOPPED", "DEPLOYMENT_STATUS_FAILED", "DEPLOYMENT_STATUS_DEPLOYING"]}]}}`, "aB"},
		{"a word", `{"request": {"filters": [{"field": "status_phase", "values": ["STOPPED"]}]}}`, "a"},
		{"no status", `{"request": {"filters": [{"field": "status_phase", "values": ["DEPLOYMENT_STATUS_UNSPECIFIED"]}]}}`, "f"},
		{"two filters", `{"request": {"filters": [{"function": "VALUE_IN", "field": "status_phase", "values": ["ACTIVE", "FAILED"]}, {"function": "VALUE_IN", "field": "status_phase", "values": ["FAILED", "STOPPED"]}]}}`, "B"},
		{
			"filter and order", `{"request": {"filters": [{"function": "VALUE_IN", "field": "status_phase", "values": ["DEPLOYMENT_STATUS_ACTIVE", "DEPLOYMENT_STATUS_PENDING"]}],
			"sortBy": {"key": "name"}}, "disableIdentityEnrichment": true}`, "dcE",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := listing(t, test.request)
			request.IncludeTotalCount = true
			for limit := range uint32(len(test.want) + 1) {
				if got := w.pages(request, limit, nil); got != test.want {
					t.Errorf("pages of %d: got %s, want %s", limit, got, test.want)
				}
			}
			if page, _ := w.page(w.listSubject("p", "d"), request); page.GetTotalCount() != int64(len(test.want)) {
				t.Errorf("got the total %d, want %d", page.GetTotalCount(), len(test.want))
			}
		})
	}
	for _, test := range []struct{ name, request, says string }{
		{"another key", `{"request": {"sortBy": {"key": "updated_at"}}}`, `request.sortBy.key: "updated_at": want name, created_at or status_phase`},
		{"no key", `{"request": {"sortBy": {}}}`, `request.sortBy.key: "": want`},
		{"another key of fields", `{"request": {"sortByFields": [{"key": "name"}, {"key": "owner"}]}}`, `request.sortByFields[1].key: "owner": want name`},
		{"a key twice", `{"request": {"sortByFields": [{"key": "status"}, {"key": "status_phase"}]}}`, `request.sortByFields[1].key: "status_phase": want each key once`},
		{"no direction", `{"request": {"sortBy": {"key": "name", "direction": 3}}}`, `request.sortBy.direction: "3": want ASCENDING or DESCENDING`},
		{"filter of the creator", `{"request": {"filters": [{"field": "created_by", "values": ["me"]}]}}`, `request.filters[0].field: "created_by": want status_phase`},
		{"another function", `{"request": {"filters": [{"field": "status_phase", "function": "NOT_EQUAL", "values": ["ACTIVE"]}]}}`, `request.filters[0].function: "NOT_EQUAL": want EQUAL or VALUE_IN`},
		{"no value", `{"request": {"filters": [{"field": "status_phase", "function": "VALUE_IN"}]}}`, `request.filters[0].values: has 0 values, want one`},
		{"two values", `{"request": {"filters": [{"field": "status_phase", "values": ["ACTIVE", "FAILED"]}]}}`, `request.filters[0].values: has 2 values, want one, or VALUE_IN`},
		{"another status", `{"request": {"filters": [{"field": "status_phase", "values": ["RUNNING"]}]}}`, `request.filters[0].values[0]: "RUNNING": want a deployment status, for example DEPLOYMENT_STATUS_ACTIVE`},
		{"numbers", `{"request": {"filters": [{"field": "status_phase", "intValues": [7]}]}}`, `request.filters[0].intValues: not known here`},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.refused(w.json(w.listSubject("", ""), listing(t, test.request)), subjects.CodeInvalidArgument, test.says)
		})
	}
	t.Run("a token is of its order and filters", func(t *testing.T) {
		first := listing(t, `{"request": {"limit": 2, "sortBy": {"key": "created_at", "direction": "ASCENDING"}}}`)
		page, _ := w.page(w.listSubject("", ""), first)
		for _, request := range []string{
			`{}`, `{"request": {"sortBy": {"key": "created_at"}}}`, `{"request": {"sortBy": {"key": "name", "direction": "ASCENDING"}}}`,
			`{"request": {"sortBy": {"key": "created_at", "direction": "ASCENDING"}, "filters": [{"field": "status_phase", "values": ["ACTIVE"]}]}}`,
		} {
			other := listing(t, request)
			other.Request.Token = page.GetToken()
			w.refused(w.json(w.listSubject("", ""), other), subjects.CodeInvalidArgument, "request.token")
		}
	})
}

// Apps come, go and change their status between the pages: an app that keeps its place is on exactly
// one of them.
func TestOrderedPages(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"name", "created_at", "status_phase"} {
		for _, direction := range []string{"ASCENDING", "DESCENDING"} {
			t.Run(key+" "+direction, func(t *testing.T) {
				t.Parallel()
				cache := &memory{}
				statuses := []string{"ACTIVE", "FAILED", "PENDING", "STOPPED"}
				const stay = 60
				for i := range stay {
					cache.addAs(t, fmt.Sprintf("[stay-%02d]", i), statuses[i%4], int64(i%7))
					cache.addAs(t, fmt.Sprintf("[guest-%02d]", i), statuses[i%4], int64(i%7))
				}
				w := serve(t, func(s *setup) { s.cache = cache })
				come := 0
				names := w.pages(listing(t, `{"request": {"sortBy": {"key": "`+key+`", "direction": "`+direction+`"}}}`), 7, func() {
					for range 3 {
						guest := fmt.Sprintf("[guest-%02d]", come*7%stay)
						if come++; come%2 == 0 {
							cache.remove(subjects.AppID{Project: "p", Domain: "d", Name: guest})
						} else {
							cache.addAs(t, guest, statuses[come/2%4], int64(come%7))
						}
					}
				})
				for i := range stay {
					if name := fmt.Sprintf("[stay-%02d]", i); strings.Count(names, name) != 1 {
						t.Errorf("%s is listed %d times, want once", name, strings.Count(names, name))
					}
				}
			})
		}
	}
}

// Names that no token has room for: each app is on one page all the same.
func TestOrderOfLongNames(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	var want []string
	for i := range 5 {
		name := strings.Repeat("é", 150) + fmt.Sprint(i)
		svc := cached(t, subjects.AppID{Project: "p", Domain: "d", Name: name})
		svc.Name = fmt.Sprintf("svc-%d", i)
		cache.add(svc)
		want = append(want, name)
	}
	w := serve(t, func(s *setup) { s.cache = cache })
	for _, limit := range []uint32{1, 2} {
		got := w.pages(listing(t, `{"request": {"sortBy": {"key": "name", "direction": "ASCENDING"}}}`), limit, nil)
		if got != strings.Join(want, "") {
			t.Errorf("pages of %d: got %q, want %q", limit, got, want)
		}
	}
}
