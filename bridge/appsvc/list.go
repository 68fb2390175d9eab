package appsvc

import (
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// listQuery selects apps.
type listQuery struct {
	project, domain, org string // empty: any
	limit                int    // 0: as many as fit
	after                *cursor
	count                bool
}

// cursor is the content of a token: the list, and the Knative Service of the last app of the page
// before. The next page continues after that Service, even if it is deleted.
type cursor struct {
	List      string `json:"l"`
	Namespace string `json:"s"`
	Name      string `json:"n"`
}

// token returns the token of the page after a Service.
func (q *listQuery) token(last *app.CachedService) (string, error) {
	text, err := json.Marshal(&cursor{q.name(), last.Namespace, last.Name})
	return base64.RawURLEncoding.EncodeToString(text), err
}

// name is a short name of the list.
func (q *listQuery) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", q.project, q.domain, q.org))
	return hex.EncodeToString(sum[:8])
}

// follows reports whether a Service comes after the cursor.
func (c *cursor) follows(svc *app.CachedService) bool {
	return kservice.Compare(svc.Key(), types.NamespacedName{Namespace: c.Namespace, Name: c.Name}) > 0
}

func (s *Service) query(r *apiRequest) (*listQuery, error) {
	body := &appv1.ListRequest{}
	if err := r.decode(body); err != nil {
		return nil, err
	}
	q := &listQuery{project: r.project, domain: r.domain, org: body.GetOrg(), limit: int(body.GetRequest().GetLimit()), count: body.GetIncludeTotalCount()}
	var p kservice.Problems
	narrow := func(path, wanted string, to *string) {
		if *to == "" {
			*to = wanted
		}
		checkPart(&p, path, wanted, *to)
	}
	if of := body.GetProject(); of != nil {
		q.org = of.GetOrganization()
		narrow("project.name", of.GetName(), &q.project)
		narrow("project.domain", of.GetDomain(), &q.domain)
	}
	if of := body.GetClusterId(); of != nil {
		q.org = of.GetOrganization()
		if of.GetName() != "" && of.GetName() != s.cfg.ClusterName {
			p.Add("clusterId.name", fmt.Sprintf("%s: this is cluster %q", kservice.Quote(of.GetName()), s.cfg.ClusterName))
		}
	}
	for _, option := range []struct {
		field string
		given bool
	}{
		{"filters", len(body.GetRequest().GetFilters()) > 0},
		{"rawFilters", len(body.GetRequest().GetRawFilters()) > 0},
		{"sortBy", body.GetRequest().GetSortBy() != nil}, //nolint:staticcheck // it is deprecated, and may be sent all the same
		{"sortByFields", len(body.GetRequest().GetSortByFields()) > 0},
	} {
		if option.given {
			p.Add("request."+option.field, "not known here: apps are selected by org, clusterId or project and come in the order of their Knative Services")
		}
	}
	if token := body.GetRequest().GetToken(); token != "" {
		q.after = q.read(token)
		if q.after == nil {
			p.AddValue("request.token", token, "the token of the page before, of the same list")
		}
	}
	return q, invalid(p.Texts())
}

// read reads a token. It returns nil for a token of another list.
func (q *listQuery) read(token string) *cursor {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil
	}
	c := &cursor{}
	if json.Unmarshal(text, c) != nil || c.List != q.name() {
		return nil
	}
	return c
}

// list answers with one page of apps. It reads the labels of every Service, but converts only those
// of the page.
func (s *Service) list(ctx context.Context, r *apiRequest) (*reply, error) {
	q, err := s.query(r)
	if err != nil {
		return nil, err
	}
	if err := s.readable(); err != nil {
		return nil, err
	}
	page := newPage(r.form, s.room())
	total := 0
	found := listHeap(s.cache.Services(func(svc *app.CachedService) bool {
		if !svc.Selection.Listed(q.project, q.domain) || q.org != "" && svc.Org != q.org {
			return false
		}
		total++
		return q.after == nil || q.after.follows(svc)
	}))
	if q.count {
		page.rest.TotalCount = int64(total)
	}
	heap.Init(&found)
	for last := (*app.CachedService)(nil); len(found) > 0; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if entry, ok := s.listed(found[0]); ok {
			full := q.limit > 0 && page.apps == q.limit
			if !full {
				listed, err := entry.convert()
				if err != nil {
					return nil, err
				}
				if full, err = page.add(listed); err != nil {
					return nil, err
				}
			}
			if full {
				page.rest.Token, err = q.token(last)
				if err != nil {
					return nil, err
				}
				break
			}
			last = entry.Service
		}
		heap.Pop(&found)
	}
	return page.reply()
}

// listed returns the app of a Service, false if there is none or it is deleted.
func (s *Service) listed(svc *app.CachedService) (Entry, bool) {
	entry, ok := s.cache.App(svc.ID)
	return entry, ok && entry.Service.Key() == svc.Key()
}

// listHeap has the first Service of a list on top. To sort all Services for each page would be more
// work than the page.
type listHeap []*app.CachedService

func (h *listHeap) Len() int { return len(*h) }
func (h *listHeap) Less(i, j int) bool {
	return kservice.Compare((*h)[i].Key(), (*h)[j].Key()) < 0
}
func (h *listHeap) Swap(i, j int) { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }
func (h *listHeap) Push(any)      {}
func (h *listHeap) Pop() any {
	last := len(*h) - 1
	*h = (*h)[:last]
	return nil
}
