package knative_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// tally is what a comparison went over.
type tally struct {
	versions  int // of Knative Services, deletions included
	revisions int // versions of Revisions
	events    int
	counts    int // events of a changed replica count or reason alone
	gap       int // versions that came and went in a gap
}

func (t tally) plus(o tally) tally {
	return tally{t.versions + o.versions, t.revisions + o.revisions, t.events + o.events, t.counts + o.counts, t.gap + o.gap}
}

// judged compares everything that was published of an app with everything that etcd held of it:
// every version has its event, in order, none is there twice, and the bucket shows the last one.
func (a *app) judged() {
	a.t.Helper()
	results.add(result{a.scenario, a.judge(a.t, nil, a.id), time.Since(a.began)})
}

// judge compares all that was published of apps with all that etcd held of them. Knative may still
// be at work: then it looks again. Of gaps, only the net difference has to be published.
func (w *world) judge(t *testing.T, gaps []audit.Gap, ids ...subjects.AppID) (sum tally) {
	t.Helper()
	suite.Eventually(t, patience, "every version of the apps has its event", func() error {
		sum = tally{}
		in, err := w.input(t.Context(), ids)
		if err != nil {
			return err
		}
		in.Gaps = gaps
		report := audit.Check(in)
		var problems []string
		for _, p := range report.Problems() {
			problems = append(problems, p.String())
		}
		if len(gaps) == 0 && report.Merged+report.Excused > 0 {
			problems = append(problems, fmt.Sprintf("%d states are merged and %d are missing", report.Merged, report.Excused))
		}
		problems = append(problems, conditionProblems(in)...)
		sum = tallyOf(in, report)
		if len(gaps) == 0 && sum.events != sum.versions+sum.counts {
			problems = append(problems, fmt.Sprintf("%d events, want one for each of %d versions and %d of replicas or reasons alone", sum.events, sum.versions, sum.counts))
		}
		if len(problems) == 0 && report.Changes == 0 {
			problems = append(problems, "etcd held none of the apps")
		}
		if len(problems) == 0 {
			return nil
		}
		err = fmt.Errorf("%s\n  %s", report, strings.Join(problems, "\n  "))
		if len(report.Duplicated)+len(report.Reordered)+len(report.Reused) > 0 {
			err = errors.Join(suite.ErrFatal, err)
		}
		return err
	})
	return sum
}

// input is what is known of apps: first what was published, then what etcd held.
func (w *world) input(ctx context.Context, ids []subjects.AppID) (audit.Input, error) {
	in := audit.Input{
		Subjects: w.names, Bucket: subjects.DefaultBucket, ClusterName: clusterName, App: kservice.Config{BaseDomain: baseDomain},
		PodConditions: w.conditions,
	}
	services, apps := map[string]bool{}, map[subjects.AppID]bool{}
	for _, id := range ids {
		services[kservice.Name(id)], apps[id] = true, true
		entry, err := w.events.entry(ctx, id)
		if err != nil {
			return in, err
		}
		if entry != nil {
			in.Entries = append(in.Entries, *entry)
		}
	}
	messages, err := w.events.all()
	if err != nil {
		return in, err
	}
	for _, m := range messages {
		id, _, err := w.names.ParseEvent(m.Subject)
		if err != nil || apps[id] {
			in.Events = append(in.Events, m)
		}
	}
	revision, err := w.etcdRevision(ctx)
	if err != nil {
		return in, err
	}
	if err := w.history.WaitFor(ctx, revision); err != nil {
		return in, err
	}
	for _, change := range w.history.Changes() {
		owner := change.Name
		if change.Kind == audit.KindRevision {
			owner = change.Object.GetLabels()[labelService]
		}
		if services[owner] {
			in.Changes = append(in.Changes, audit.Change(change))
		}
	}
	if w.pods == nil {
		return in, nil
	}
	if err := w.pods.WaitFor(ctx, revision); err != nil {
		return in, err
	}
	for _, change := range w.pods.Changes() {
		if services[change.Object.GetLabels()[labelService]] {
			in.Pods = append(in.Pods, audit.Change(change))
		}
	}
	return in, nil
}

// etcdRevision is what etcd is at.
func (w *world) etcdRevision(ctx context.Context) (int64, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(servingv1.SchemeGroupVersion.WithKind("ServiceList"))
	if err := w.Client.List(ctx, list, client.InNamespace(w.namespace), client.Limit(1)); err != nil {
		return 0, err
	}
	return versionOf(list.GetResourceVersion())
}

func tallyOf(in audit.Input, report audit.Report) tally {
	sum := tally{versions: report.Changes, events: report.Events, gap: report.Excused}
	for _, c := range in.Changes {
		if c.Kind == audit.KindRevision {
			sum.revisions++
		}
	}
	seen := map[string]bool{}
	for _, m := range in.Events {
		version := m.Header.Get(subjects.HeaderUID) + "@" + m.Header.Get(subjects.HeaderResourceVersion)
		if deleted := m.Header.Get(subjects.HeaderDeletedResourceVersion); deleted != "" {
			version += " deleted"
		}
		if seen[version] {
			sum.counts++
		}
		seen[version] = true
	}
	return sum
}
