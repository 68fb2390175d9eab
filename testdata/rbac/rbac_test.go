// Package rbac_test runs appbridge with the roles of the chart on a real API server, with all of
// their rights and with each right removed.
package rbac_test

import (
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var shared kubesuite.SharedWorld

// The tests mostly wait: more of them run at a time than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // -parallel overrides it
		panic(err)
	}
	suite.Main(m, shared.Stop)
}

// world is a cluster with a kubelet, and a NATS server.
type world struct {
	*kubesuite.World
	url string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := shared.Get(t)
	js := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	return &world{w, js.ClientURL()}
}

// variant is a way to install the chart.
type variant struct {
	name       string
	values     []string
	namespaces []string // that serve watches
	writes     bool     // serve changes apps
	makes      bool     // serve creates namespaces
	// lacks is what fails with all rights of the variant.
	lacks map[string]string
	// tried are the rights that are removed; nil: none. Others are those of another variant.
	tried func(right) bool

	manifests string
}

func variants(t *testing.T) []variant {
	t.Helper()
	const (
		all    = "config.namespaces={*}"
		some   = "config.namespaces={" + placeMore + "," + placeApps + "}"
		writes = "config.enable-writes=true"
	)
	every, both := []string{"*"}, []string{placeMore, placeApps}
	vs := []variant{
		{
			name: "all", values: []string{all}, namespaces: every,
			tried: func(right) bool { return true },
		},
		{
			name: "some", values: []string{some, writes}, namespaces: both, writes: true,
			// The Roles in the two namespaces are the same.
			tried: func(r right) bool { return r.namespace != placeMore },
		},
		{
			name: "make", values: []string{all, writes, "rbac.createNamespaces=true"},
			namespaces: every, writes: true, makes: true,
			tried: func(r right) bool { return r.verb == "create" && r.resource != leases },
		},
		{
			name: "nologs", values: []string{some, "rbac.logs=false"}, namespaces: both,
			lacks: noLogs("get on " + services + " in "),
		},
	}
	for i := range vs {
		vs[i].manifests = render(t, vs[i].values)
	}
	return vs
}

func (v variant) tries(r right) bool { return v.tried != nil && v.tried(r) }

// expected is what fails at a site without a right on a namespace, empty for all.
func (s *site) expected(fails map[string]string, namespace string) map[string]string {
	watched := "namespace " + s.placed(namespace)
	if namespace == "" {
		watched = "all namespaces"
	}
	want := map[string]string{}
	for what, text := range fails {
		app := s.apps()
		switch what {
		case doesNamespace:
			if app = s.made(); !s.variant.makes {
				continue
			}
		case doesDeploy:
			if !s.variant.writes || s.variant.makes {
				continue
			}
		case doesRedeploy, doesStop, doesDelete, doesReplica:
			if !s.variant.writes {
				continue
			}
		}
		names := strings.NewReplacer(
			"{watched}", watched, "{app}", "namespace "+app, "{lease}", "namespace "+s.own())
		want[what] = names.Replace(text)
	}
	if text, ok := want[doesReplicas]; ok && namespace == "" {
		want[doesMore] = text
	}
	return want
}

// Without any one right of the chart's roles something fails that names the right, and all else
// works. With all of them everything works.
func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, v := range variants(t) {
		t.Run(v.name+"/all rights", func(t *testing.T) {
			t.Parallel()
			newSite(t, w, v, v.name, right{}).everything()
		})
		_, roles, _ := objects(t, v.manifests)
		for i, r := range granted(t, roles) {
			if n := find(r); n >= 0 && v.tries(r) {
				t.Run(v.name+"/without "+r.String(), func(t *testing.T) {
					t.Parallel()
					newSite(t, w, v, fmt.Sprintf("%s-%d", v.name, i), r).without(proofs()[n], r)
				})
			}
		}
	}
}

// The chart grants what the table has, and nothing else.
func TestTableIsComplete(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "builds Helm")
	tried := map[int]bool{}
	vs := append(variants(t), variant{name: "of the default values", manifests: render(t, nil)})
	files, err := filepath.Glob(filepath.Join("..", "..", chart, "ci", "*-values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		lease := []string{"config.lease-name=appbridge", "config.lease-namespace="} // as in the table
		manifests := render(t, lease, filepath.Join(chart, "ci", name))
		vs = append(vs, variant{name: name, manifests: manifests})
	}
	for _, v := range vs {
		_, roles, _ := objects(t, v.manifests)
		for _, r := range granted(t, roles) {
			if n := find(r); n < 0 {
				t.Errorf("variant %s: the chart grants %s, and no test shows what needs it", v.name, r)
			} else if v.tries(r) {
				tried[n] = true
			}
		}
	}
	for n, p := range proofs() {
		if !tried[n] {
			t.Errorf("the chart does not grant %s on %s in %s", p.verb, p.resource, p.where)
		}
	}
}

// find is the index of the proof of a right, -1 without one.
func find(r right) int {
	where := placeOfApps
	switch {
	case r.namespace == placeOwn:
		where = placeOfLease
	case r.resource == "namespaces" && r.namespace == "":
		where = placeOfCluster
	}
	return slices.IndexFunc(proofs(), func(p proof) bool {
		return p.resource == r.resource && p.name == r.name && p.verb == r.verb && p.where == where
	})
}

// without expects what fails without a right.
func (s *site) without(p proof, lacks right) {
	s.t.Helper()
	i := s.serve()
	got := map[string]string{}
	if failure := s.starts(i); failure != "" {
		got[doesServe] = failure
	} else {
		got = s.fails()
	}
	want := s.expected(p.fails(), lacks.namespace)
	if _, ok := want[doesVerify]; ok {
		got[doesVerify] = s.verify()
	}
	if _, ok := want[doesLook]; ok {
		got[doesLook] = s.logged(i, "whether a watched namespace exists is not known")
	}
	if len(want) == 0 {
		s.t.Error("nothing is expected to fail")
	}
	if !maps.Equal(got, want) {
		s.t.Errorf("without %s fails\n%s\nwant\n%s", lacks, lines(got), lines(want))
	}
}

func lines(fails map[string]string) string {
	text := ""
	for _, what := range slices.Sorted(maps.Keys(fails)) {
		text += "  " + what + ": " + fails[what] + "\n"
	}
	return text
}

// everything expects that all works, but for what the variant lacks.
func (s *site) everything() {
	s.t.Helper()
	i := s.serve()
	if failure := s.starts(i); failure != "" {
		s.t.Fatal(failure)
	}
	if got, want := s.fails(), s.expected(s.variant.lacks, placeApps); !maps.Equal(got, want) {
		s.t.Errorf("with all rights fails\n%s\nwant\n%s", lines(got), lines(want))
	}
	lease := &coordinationv1.Lease{}
	s.must(s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.own(), Name: "appbridge"}, lease))
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		s.t.Error("no replica holds the Lease")
	}
	suite.Eventually(s.t, suite.Patience, "the audit compares everything", func() error {
		if n := i.Metric(s.t, `appbridge_audit_rounds_total{result="complete"}`); n == 0 {
			return fmt.Errorf("%v rounds are complete", n)
		}
		return nil
	})
	if got := s.verify(); got != "" {
		s.t.Error(got)
	}
}
