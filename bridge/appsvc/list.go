package appsvc

import (
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// listQuery selects apps.
type listQuery struct {
	project, domain, org string // empty: any
	statuses             statuses
	order                order
	limit                int // 0: as many as fit
	after                *cursor
	count                bool
}

// selects reports whether an app is in the list.
func (q *listQuery) selects(svc *app.CachedService) bool {
	return svc.Selection.Listed(q.project, q.domain) && (q.org == "" || svc.Org == q.org) && q.statuses.has(svc)
}

// cursor is the content of a token: the list, and the last app of the page before. The next page
// continues after the place of that app, even if it is deleted or has another place by now.
type cursor struct {
	List string `json:"l"`
	place
}

// token returns the token of the page after a Service.
func (q *listQuery) token(last *app.CachedService) (string, error) {
	text, err := json.Marshal(&cursor{q.name(), q.order.place(last)})
	return base64.RawURLEncoding.EncodeToString(text), err
}

// name is a short name of the list.
func (q *listQuery) name() string {
	text := fmt.Appendf(nil, "%q %q %q", q.project, q.domain, q.org)
	if q.statuses != nil || q.order != nil {
		text = fmt.Appendf(text, " %v %v", q.statuses, q.order)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
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
	if body.GetArtifact() != nil {
		p.Add("artifact", "not known here: nothing in the cluster has the inputs of an app by artifact")
	}
	q.statuses = readFilters(&p, body.GetRequest().GetFilters())
	if len(body.GetRequest().GetRawFilters()) > 0 {
		p.Add("request.rawFilters", "not known here: use filters")
	}
	q.order = readOrder(&p, body.GetRequest())
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
	found := listHeap{order: q.order, services: s.cache.Services(func(svc *app.CachedService) bool {
		if !q.selects(svc) {
			return false
		}
		total++
		return q.after == nil || q.order.compare(q.order.place(svc), q.after.place) > 0
	})}
	if q.count {
		page.rest.TotalCount = int64(total)
	}
	heap.Init(&found)
	for last := (*app.CachedService)(nil); found.Len() > 0; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if entry, ok := s.listed(q, found.services[0]); ok {
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
			last = found.services[0] // which has its place, whatever it has become
		}
		heap.Pop(&found)
	}
	return page.reply()
}

// listed returns the app of a Service, false if there is none, it is deleted, or it has left the list
// since the Services were read.
func (s *Service) listed(q *listQuery, svc *app.CachedService) (Entry, bool) {
	entry, ok := s.cache.App(svc.ID)
	return entry, ok && entry.Service.Key() == svc.Key() && q.statuses.has(entry.Service)
}

// listHeap has the first Service of a list on top. To sort all Services for each page would be more
// work than the page.
type listHeap struct {
	order    order
	services []*app.CachedService
}

func (h *listHeap) Len() int { return len(h.services) }
func (h *listHeap) Less(i, j int) bool {
	return h.order.compare(h.order.place(h.services[i]), h.order.place(h.services[j])) < 0
}
func (h *listHeap) Swap(i, j int) { h.services[i], h.services[j] = h.services[j], h.services[i] }
func (h *listHeap) Push(any)      {}
func (h *listHeap) Pop() any {
	h.services = h.services[:len(h.services)-1]
	return nil
}
