package rbac_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// place is where a right is granted.
type place string

const (
	placeOfApps    place = "each namespace of apps"
	placeOfLease   place = "the namespace of the Lease"
	placeOfCluster place = "the cluster"
)

// What appbridge does, as the table names it.
const (
	doesServe     = "`serve`"
	doesReplicas  = "`replicas`"
	doesMore      = "`replicas` of another namespace"
	doesLogGet    = "`logs.get`"
	doesLogTail   = "`logs.tail`"
	doesDeploy    = "`deploy` of a new app"
	doesRedeploy  = "`deploy` of an app that exists"
	doesStop      = "`stop`"
	doesDelete    = "`delete`"
	doesReplica   = "`delete-replica`"
	doesNamespace = "`deploy` into a namespace that does not exist"
	doesVerify    = "`appbridge verify`"
	doesLook      = "the look for missing namespaces"
)

// proof is a right that the chart grants, and what does not work without it. All else works.
type proof struct {
	resource, name, verb string
	where                place
	why                  string

	// What fails, with an error that names the right.
	serve, verify, logs bool
	writes              []string
	// other are the errors of what fails with another text. {watched} stands for the namespaces of a
	// role, {app} for that of the app, {lease} for that of the Lease.
	other map[string]string
}

const (
	services  = "services.serving.knative.dev"
	revisions = "revisions.serving.knative.dev"
	leases    = "leases.coordination.k8s.io"
)

// The parts of errors.
const (
	forbids      = "kubernetes forbids what appbridge needs, "
	grantIt      = ": grant it by RBAC"
	logsLack     = "500 kubernetes: the log service lacks the right "
	appsLack     = "500 kubernetes: appbridge lacks the right "
	noKubeSystem = forbids + "get on namespace kube-system (its uid is the cluster's identity)" +
		grantIt
	noPodWatch = "500 kubernetes: the right watch on pods in {watched} is missing" + grantIt
)

// proofs are sorted as in the table.
func proofs() []proof {
	writes := []string{doesDeploy, doesNamespace, doesRedeploy, doesStop, doesDelete, doesReplica}
	deploys := []string{doesDeploy, doesNamespace}
	apps, lease, cluster := placeOfApps, placeOfLease, placeOfCluster
	return []proof{
		{
			resource: services, verb: "list", where: apps, why: "the apps",
			serve: true, verify: true,
		},
		{resource: services, verb: "watch", where: apps, why: "their changes", serve: true},
		{
			resource: services, verb: "get", where: apps,
			why:  "logs and writes read which app the Knative Service is",
			logs: true, writes: writes,
		},
		{
			resource: revisions, verb: "list", where: apps, why: "the number of replicas of an app",
			serve: true, verify: true,
		},
		{resource: revisions, verb: "watch", where: apps, why: "changes of that number", serve: true},
		{resource: "pods", verb: "list", where: apps, why: "the replicas of an app", logs: true},
		{
			resource: "pods", verb: "watch", where: apps, why: "changes of the replicas",
			other: map[string]string{doesReplicas: noPodWatch},
		},
		{
			resource: "pods", verb: "get", where: apps,
			why:  "logs: the state of a container; writes: which app the pod belongs to",
			logs: true, writes: []string{doesReplica},
		},
		{resource: "pods/log", verb: "get", where: apps, why: "logs", logs: true},
		{
			resource: "namespaces", verb: "get", where: apps, why: "whether the namespace exists",
			other: map[string]string{doesLook: "the right get on {watched} is missing" + grantIt},
		},
		{
			resource: leases, verb: "create", where: lease, why: "leader election, the first time",
			serve: true,
		},
		{
			resource: leases, name: "appbridge", verb: "get", where: lease, why: "which replica leads",
			serve: true,
		},
		{
			resource: leases, name: "appbridge", verb: "update", where: lease,
			why: "to become the leader and to stay it", serve: true,
		},
		{
			resource: "namespaces", name: "kube-system", verb: "get", where: cluster,
			why:   "its uid is the cluster's identity",
			other: map[string]string{doesServe: noKubeSystem, doesVerify: noKubeSystem},
		},
		{resource: services, verb: "create", where: apps, why: "writes", writes: deploys},
		{
			resource: services, verb: "update", where: apps, why: "writes",
			writes: []string{doesRedeploy},
		},
		{resource: services, verb: "patch", where: apps, why: "writes", writes: []string{doesStop}},
		{resource: services, verb: "delete", where: apps, why: "writes", writes: []string{doesDelete}},
		{
			resource: revisions, verb: "get", where: apps,
			why: "writes: which app the Revision belongs to", writes: []string{doesStop},
		},
		{
			resource: revisions, verb: "delete", where: apps,
			why: "writes: the pods of a stopped app end at once", writes: []string{doesStop},
		},
		{resource: "pods", verb: "delete", where: apps, why: "writes", writes: []string{doesReplica}},
		{
			resource: "namespaces", verb: "create", where: cluster,
			why:   "writes into a namespace that does not exist",
			other: map[string]string{doesNamespace: appsLack + "create on namespaces"},
		},
	}
}

// fails are the errors of all that fails.
func (p proof) fails() map[string]string {
	fails := map[string]string{}
	maps.Copy(fails, p.other)
	on := p.verb + " on " + p.resource + " in "
	where := "{watched}"
	if p.where == placeOfLease {
		where = "{lease}"
	}
	if p.serve {
		fails[doesServe] = forbids + on + where + grantIt
	}
	if p.verify {
		fails[doesVerify] = forbids + on + where + grantIt
	}
	if p.logs {
		maps.Copy(fails, noLogs(on))
	}
	for _, what := range p.writes {
		fails[what] = appsLack + on + "{app}"
	}
	return fails
}

// noLogs are the errors of requests for logs.
func noLogs(on string) map[string]string {
	return map[string]string{doesLogGet: logsLack + on + "{app}", doesLogTail: logsLack + on + "{app}"}
}

const (
	docFile  = "security.md"
	docTable = "| resource | verb | where | why | what fails without it |\n" +
		"| --- | --- | --- | --- | --- |\n"
)

var update = flag.Bool("update", false, "write the table into the document")

// rows are the proofs as the document has them.
func rows() string {
	text := ""
	for _, p := range proofs() {
		resource := "`" + p.resource + "`"
		if p.name != "" {
			resource += " named `" + p.name + "`"
		}
		text += fmt.Sprintf("| %s | `%s` | %s | %s | %s |\n",
			resource, p.verb, p.where, p.why, p.consequences())
	}
	return text
}

// The table of rights in the document is that of the test.
func TestTableIsDocumented(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "docs", docFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), docTable)
	if !found {
		t.Fatalf("%s has no table after\n%s", file, docTable)
	}
	table, after, _ := strings.Cut(rest, "\n\n")
	if table += "\n"; table == rows() {
		return
	}
	if !*update {
		t.Fatalf("%s has\n%s\nwant (go test ./testdata/rbac -run TestTableIsDocumented -update)\n%s",
			file, table, rows())
	}
	if err := os.WriteFile(file, []byte(before+docTable+rows()+"\n"+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// consequences is what fails, grouped by the error, for the namespaces that the page uses.
func (p proof) consequences() string {
	names := strings.NewReplacer(
		"{watched}", "namespace flyte", "{app}", "namespace flyte", "{lease}", "namespace appbridge")
	by := map[string][]string{}
	for what, text := range p.fails() {
		text = names.Replace(text)
		by[text] = append(by[text], what)
	}
	var all []string
	for text, whats := range by {
		slices.Sort(whats)
		all = append(all, strings.Join(whats, ", ")+": `"+text+"`")
	}
	slices.Sort(all)
	return strings.Join(all, "<br>")
}
