package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// result is how the description of an answer begins.
type result string

const (
	denied    result = "NATS: "
	own       result = "answered, of the own project alone"
	nobody    result = "NATS: nobody listens"
	elsewhere result = "not answered"
	toInbox   result = "answered there, of the own project alone"

	badRequest result = "400 "
	forbidden  result = "403 "
	notFound   result = "404 "
	conflict   result = "409 "
)

// What deploys have in common.
const (
	usualContainer = `"container": {"image": "app", "ports": [{"containerPort": 8080}]}`
	usualPod       = `"containers": [{"name": "c", "image": "app", "ports": [{"containerPort": 8080}]}]`
)

// stolenToken is in subjects into which the bridge is to write for somebody who may not.
const stolenToken = "stolen"

// try is one attempt.
type try struct {
	what      string
	subject   string
	body      string
	reply     string // another than an own inbox
	subscribe bool
	want      result
}

func (y try) shownSubject() string {
	if y.reply != "" {
		return y.subject + " reply " + y.reply
	}
	return y.subject
}

func (y try) shownBody() string {
	body := strings.Join(strings.Fields(y.body), " ")
	body = strings.NewReplacer(`{"app": {"spec": {`, "… ", `"pod": {"primaryContainerName": "c", "podSpec": {`, "", usualPod, "", usualContainer, "").Replace(body)
	if len(body) > 120 {
		return body[:120] + "…"
	}
	return body
}

// subject is for names that are legal.
func subject(text string, err error) string {
	if err != nil {
		panic(err)
	}
	return text
}

// tries are all attempts of a project at another one.
func tries(t *testing.T, o, victim *tenantOf) []try {
	t.Helper()
	all := bySubject(t, o, victim)
	all = append(all, byBody(t, o, victim)...)
	all = append(all, byReply(t, o, victim)...)
	all = append(all, byName(t, o, victim)...)
	return append(all, byDeploy(t, o)...)
}

// bySubject names the other project in the subject.
func bySubject(t *testing.T, o, victim *tenantOf) (all []try) {
	t.Helper()
	n, id := names(t), victim.app.ID()
	key := subject(id.Key())
	publish := func(what string, to ...string) {
		for _, to := range to {
			all = append(all, try{what: what, subject: to, want: denied})
		}
	}
	for _, op := range []subjects.APIOp{
		subjects.APIGet, subjects.APIReplicas, subjects.APIIngress, subjects.APIDeploy, subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica,
	} {
		publish("its subject", subject(n.API(op, id)))
	}
	publish("its list", subject(n.APIList(victim.project, "")), subject(n.APIList(victim.project, "production")))
	publish("the list of all", subject(n.APIList("", "")))
	for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
		publish("its log", subject(n.Logs(op, id)))
	}
	publish("its stream", subject(n.LogsStop(victim.project, victim.stream)), subject(n.LogsAck(victim.project, victim.stream, "1")),
		subject(n.LogsOut(victim.project, victim.stream)))
	publish("forged state", "$KV."+subjects.DefaultBucket+"."+key, "$KV."+subjects.DefaultBucket+"."+subject(o.app.ID().Key()),
		subject(n.Event(id, subjects.Deleted)), subject(n.Event(o.app.ID(), subjects.Deleted)))
	publish("JetStream", "$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.PURGE."+stream, "$JS.API.STREAM.MSG.GET."+stream, "$JS.API.CONSUMER.CREATE."+stream,
		"$JS.API.STREAM.MSG.GET.KV_"+bucket, "$JS.API.DIRECT.GET.KV_"+bucket+".$KV."+bucket+"."+key)
	for _, to := range []string{
		strings.TrimSuffix(n.Events(), ">") + victim.project + ".>", n.Events(), strings.TrimSuffix(n.Events(), ">") + "*.production.>",
		"$KV." + bucket + "." + victim.project + ".>", "$KV." + bucket + ".>",
		subject(n.LogsOut(victim.project, victim.stream)), n.Prefix() + ".logs.out.>", n.Prefix() + ".logs.>", n.Prefix() + ".logs.ack." + o.project + ".>",
		n.Prefix() + ".api.>", subject(n.API(subjects.APIGet, o.app.ID())), "_INBOX." + victim.project + ".>", "_INBOX.>", "_INBOX.*.*", ">", "$SRV.>", "$JS.>",
	} {
		all = append(all, try{what: "listening", subject: to, subscribe: true, want: denied})
	}
	// A stream of the other's is none of the own project's.
	all = append(all,
		try{what: "its stream as an own one", subject: subject(n.LogsStop(o.project, victim.stream)), want: nobody},
		try{what: "its stream as an own one", subject: subject(n.LogsAck(o.project, victim.stream, "1")), want: nobody},
	)
	// Wildcards in place of a name.
	for _, to := range []string{"get", "replicas", "delete"} {
		all = append(all, try{what: "wildcards", subject: n.Prefix() + ".api." + to + "." + o.project + ".*.*", want: badRequest})
	}
	return append(all, try{what: "wildcards", subject: n.Prefix() + ".logs.get." + o.project + ".*.*", want: badRequest},
		try{what: "wildcards", subject: n.Prefix() + ".api.get.*.production.vault", want: denied})
}

// byBody names the other project in the body of a request for the own.
func byBody(t *testing.T, o, victim *tenantOf) (all []try) {
	t.Helper()
	n, id := names(t), o.app.ID()
	other := fmt.Sprintf(`{"project": %q, "domain": "production", "name": "vault"}`, victim.project)
	url := kservice.PublicURL(victim.app.ID(), kservice.Config{BaseDomain: "apps.example.com"})
	api := func(op subjects.APIOp, body string, want result) {
		all = append(all, try{what: "the body of " + string(op), subject: subject(n.API(op, id)), body: body, want: want})
	}
	for _, op := range []subjects.APIOp{subjects.APIGet, subjects.APIReplicas, subjects.APIIngress} {
		api(op, `{"appId": `+other+`}`, badRequest)
		api(op, fmt.Sprintf(`{"ingress": {"publicUrl": %q}}`, url), badRequest)
	}
	api(subjects.APIReplicas, fmt.Sprintf(`{"appId": {"org": %q}}`, victim.project), own)
	api(subjects.APIDeploy, `{"app": {"metadata": {"id": `+other+`}, "spec": {"container": {"image": "app", "ports": [{"containerPort": 8080}]}}}}`, badRequest)
	api(subjects.APIStop, `{"app": {"metadata": {"id": `+other+`}}}`, badRequest)
	api(subjects.APIDelete, `{"appId": `+other+`}`, badRequest)
	api(subjects.APIDeleteReplica, fmt.Sprintf(`{"appId": %s, "name": %q}`, other, victim.pod.Name()), badRequest)
	api(subjects.APIDeleteReplica, fmt.Sprintf(`{"name": %q}`, victim.pod.Name()), notFound)
	api(subjects.APIDeleteReplica, fmt.Sprintf(`{"name": "../pods/%s"}`, victim.pod.Name()), badRequest)
	list := func(body string, want result) {
		for _, domain := range []string{"", "production"} {
			all = append(all, try{what: "the body of list", subject: subject(n.APIList(o.project, domain)), body: body, want: want})
		}
	}
	list(fmt.Sprintf(`{"project": {"name": %q}}`, victim.project), badRequest)
	list(fmt.Sprintf(`{"project": {"name": %q, "domain": "production"}}`, victim.project), badRequest)
	list(fmt.Sprintf(`{"org": %q}`, victim.project), own)
	list(`{"clusterId": {"name": "another"}}`, badRequest)
	list(`{"clusterId": {"name": "test"}, "includeTotalCount": true}`, own)
	list(fmt.Sprintf(`{"request": {"filters": [{"field": "project", "values": [%q]}]}}`, victim.project), badRequest)
	list(fmt.Sprintf(`{"request": {"rawFilters": ["project=%s"]}}`, victim.project), badRequest)
	list(fmt.Sprintf(`{"request": {"token": %q}}`, victim.token(t)), badRequest)
	logs := func(body string, want result) {
		for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
			all = append(all, try{what: "the options of " + string(op), subject: subject(n.Logs(op, id)), body: body, want: want})
		}
	}
	logs(fmt.Sprintf(`{"replica": %q}`, victim.pod.Name()), notFound)
	logs(fmt.Sprintf(`{"replica": %q, "previous": true}`, victim.pod.Name()), notFound)
	logs(fmt.Sprintf(`{"replica": "../pods/%s"}`, victim.pod.Name()), notFound)
	logs(`{"container": "../`+victim.pod.Name()+`/app"}`, notFound)
	logs(fmt.Sprintf(`{"project": %q}`, victim.project), badRequest)
	logs(`{"app": `+other+`}`, badRequest)
	logs(`{"namespace": "kube-system"}`, badRequest)
	return all
}

// token is that of a list of the project.
func (o *tenantOf) token(t *testing.T) string {
	t.Helper()
	a, err := asks(t.Context(), o.nc, subject(names(t).APIList(o.project, "")), `{"request": {"limit": 1}}`)
	must(t, err)
	_, rest, _ := strings.Cut(a.body, `"token":"`)
	token, _, found := strings.Cut(rest, `"`)
	if !found {
		t.Fatalf("the list of %s has no token: %s", o.project, a.body)
	}
	return token
}

// byReply has the answer go to where only the other project or appbridge may write.
func byReply(t *testing.T, o, victim *tenantOf) (all []try) {
	t.Helper()
	n, id, none := names(t), o.app.ID(), o.id("production", "none")
	for _, y := range []try{
		{subject: subject(n.APIList(o.project, ""))},
		{subject: subject(n.API(subjects.APIGet, id))},
		{subject: subject(n.API(subjects.APIReplicas, id))},
		{subject: subject(n.API(subjects.APIStop, none))},
		{subject: subject(n.API(subjects.APIDelete, none))},
		{subject: subject(n.API(subjects.APIGet, id)), body: "{"},
		{subject: subject(n.Logs(subjects.LogGet, id))},
		{subject: subject(n.Logs(subjects.LogTail, id)), body: `{"follow": true}`},
		{subject: subject(n.Logs(subjects.LogOpen, id))},
		{subject: subject(n.Logs(subjects.LogTail, id)), body: "{"},
	} {
		y.what, y.want = "an answer to where it may not go", elsewhere
		for _, y.reply = range foreignReplies(t, victim) {
			all = append(all, y)
		}
		y.what, y.reply, y.want = "an answer to an inbox of the other", victim.inbox(), toInbox
		all = append(all, y)
	}
	return all
}

// foreignReplies are subjects into which a project may not write, and appbridge must not.
func foreignReplies(t *testing.T, victim *tenantOf) []string {
	t.Helper()
	n, stolen := names(t), victim.id("production", stolenToken)
	return []string{
		subject(n.LogsOut(victim.project, stolenToken)), subject(n.LogsStop(victim.project, victim.stream)),
		subject(n.Event(stolen, subjects.Created)), "$KV." + bucket + "." + subject(stolen.Key()),
		subject(n.API(subjects.APIDelete, victim.app.ID())), "$JS.API.STREAM.PURGE." + stolenToken, "_INBOX", "_INBOXES." + stolenToken,
	}
}

// inbox is one of the project that somebody has guessed.
func (o *tenantOf) inbox() string { return "_INBOX." + o.project + "." + stolenToken }

// byName uses names that fold to one Knative Service, and those of a deleted app.
func byName(t *testing.T, o, victim *tenantOf) (all []try) {
	t.Helper()
	n := names(t)
	for _, of := range []subjects.AppID{victim.folded, victim.gone} {
		if twin := o.twin(of); kservice.Name(twin) != kservice.Name(of) {
			t.Fatalf("%s and %s have different names", twin, of)
		}
	}
	folded, gone := o.twin(victim.folded), o.twin(victim.gone)
	image := `{"app": {"spec": {"container": {"image": "registry.example.com/app:1", "ports": [{"containerPort": 8080}]}}}}`
	api := func(op subjects.APIOp, id subjects.AppID, body string, want result) {
		all = append(all, try{what: "a name that folds", subject: subject(n.API(op, id)), body: body, want: want})
	}
	logs := func(id subjects.AppID, body string, want result) {
		for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
			all = append(all, try{what: "a name that folds", subject: subject(n.Logs(op, id)), body: body, want: want})
		}
	}
	api(subjects.APIGet, folded, "", notFound)
	api(subjects.APIReplicas, folded, "", own)
	api(subjects.APIIngress, folded, "", own)
	api(subjects.APIDeploy, folded, image, conflict)
	api(subjects.APIStop, folded, "", own)
	api(subjects.APIDelete, folded, "", own)
	api(subjects.APIDeleteReplica, folded, fmt.Sprintf(`{"name": "%s-00001-pod"}`, kservice.Name(folded)), notFound)
	logs(folded, "", notFound)
	// The name is free again, and the pod of the deleted app is still there.
	api(subjects.APIReplicas, gone, "", own)
	api(subjects.APIDeleteReplica, gone, fmt.Sprintf(`{"name": %q}`, victim.drain.Name()), notFound)
	logs(gone, "", notFound)
	api(subjects.APIDeploy, gone, image, own)
	api(subjects.APIReplicas, gone, "", own)
	api(subjects.APIDeleteReplica, gone, fmt.Sprintf(`{"name": %q}`, victim.drain.Name()), notFound)
	logs(gone, fmt.Sprintf(`{"replica": %q}`, victim.drain.Name()), notFound)
	all = append(all, try{what: "a name that folds", subject: subject(n.Logs(subjects.LogGet, gone)), want: own})
	api(subjects.APIDeploy, o.id("production", "plain"), image, conflict) // of a Service that is nobody's
	api(subjects.APIStop, o.id("production", "plain"), "", own)
	api(subjects.APIDelete, o.id("production", "plain"), "", own)
	return all
}

// byDeploy deploys an own app that is to reach further.
func byDeploy(t *testing.T, o *tenantOf) (all []try) {
	t.Helper()
	to := subject(names(t).API(subjects.APIDeploy, o.id("production", "reach")))
	deploy := func(spec string) {
		all = append(all, try{what: "a deploy that reaches further", subject: to, body: `{"app": {"spec": ` + spec + `}}`, want: forbidden})
	}
	for _, account := range []string{"appbridge", "another"} {
		deploy(`{` + usualContainer + `, "securityContext": {"runAs": {"k8sServiceAccount": "` + account + `"}}}`)
	}
	deploy(`{` + usualContainer + `, "securityContext": {"secrets": [{"group": "another", "key": "token"}]}}`)
	pod := func(spec string) { deploy(`{"pod": {"primaryContainerName": "c", "podSpec": {` + spec + `}}}`) }
	in := func(fields string) {
		pod(strings.TrimSuffix(usualPod, "}]") + ", " + fields + "}]")
	}
	pod(usualPod + `, "serviceAccountName": "appbridge"`)
	pod(usualPod + `, "serviceAccount": "appbridge"`)
	pod(usualPod + `, "imagePullSecrets": [{"name": "s"}]`)
	for _, field := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		pod(usualPod + `, "` + field + `": true`)
	}
	for _, volume := range []string{
		`"secret": {"secretName": "s"}`, `"configMap": {"name": "s"}`, `"hostPath": {"path": "/"}`,
		`"projected": {"sources": [{"secret": {"name": "s"}}]}`, `"projected": {"sources": [{"configMap": {"name": "s"}}]}`,
		`"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}`,
	} {
		pod(usualPod + `, "volumes": [{"name": "v", ` + volume + `}]`)
	}
	// Of an account that it may have, as the one that Kubernetes mounts.
	pod(strings.Replace(usualPod, "}]}]", `}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]`, 1) +
		`, "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]`)
	all[len(all)-1].want = own
	in(`"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]`)
	in(`"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]`)
	in(`"envFrom": [{"secretRef": {"name": "s"}}]`)
	in(`"envFrom": [{"configMapRef": {"name": "s"}}]`)
	in(`"securityContext": {"privileged": true}`)
	pod(usualPod + `, "initContainers": [{"name": "i", "image": "app", "envFrom": [{"secretRef": {"name": "s"}}]}]`)
	return all
}

// try makes one attempt and describes what came of it.
func (o *tenantOf) try(t *testing.T, y try, victim *tenantOf) string {
	t.Helper()
	if y.subscribe {
		sub, err := o.nc.SubscribeSync(y.subject)
		must(t, err)
		return o.refusal(t, "subscription to", y.subject, func() string {
			return fmt.Sprintf("heard, with an error %v", sub.Unsubscribe())
		})
	}
	inbox := o.nc.NewInbox()
	answers := make(chan *nats.Msg, 64)
	sub, err := o.nc.ChanSubscribe(inbox, answers)
	must(t, err)
	defer func() { must(t, sub.Unsubscribe()) }()
	reply := inbox
	if y.reply != "" {
		reply = y.reply
	}
	must(t, o.nc.PublishRequest(y.subject, reply, []byte(y.body)))
	must(t, o.nc.Flush())
	if y.want == denied {
		return o.refusal(t, "publish to", y.subject, func() string { return "accepted" })
	}
	if y.reply != "" {
		// A later request has been answered, so this one would be, too.
		_, err := asks(t.Context(), o.nc, subject(names(t).API(subjects.APIGet, o.app.ID())), "")
		must(t, err)
		return string(y.want) // what is written there is heard
	}
	var msg *nats.Msg
	eventually(t, "an answer to "+y.shownSubject()+" "+y.shownBody(), func() error {
		select {
		case msg = <-answers:
			return nil
		default:
			return errors.New("there is none")
		}
	})
	code := msg.Header.Get(subjects.HeaderServiceErrorCode)
	switch {
	case msg.Header.Get(subjects.HeaderStatus) == subjects.StatusNoResponders && msg.Header.Get(subjects.HeaderLogEnd) == "":
		return string(nobody)
	case code != "":
		return code + " " + msg.Header.Get(subjects.HeaderServiceError)
	case victim.leaks(string(msg.Data)):
		return fmt.Sprintf("LEAK: %.300q", msg.Data)
	default:
		return string(own)
	}
}

// refusal is the server's, or what accepted describes.
func (o *tenantOf) refusal(t *testing.T, verb, of string, accepted func() string) string {
	t.Helper()
	o.controls++
	control := fmt.Sprintf("control.%d", o.controls)
	must(t, o.nc.Publish(control, nil))
	must(t, o.nc.Flush())
	// Refusals are handed out in their order, and the last one is certain.
	eventually(t, "the server refuses "+control, func() error {
		if !o.wasRefused("publish to", control) {
			return errors.New("it does not")
		}
		return nil
	})
	if o.wasRefused(verb, of) {
		return string(denied) + "permissions violation"
	}
	return accepted()
}

func (o *tenantOf) wasRefused(verb, of string) bool {
	want := strings.ToLower(fmt.Sprintf("permissions violation for %s %q", verb, of))
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.refused, func(text string) bool { return strings.Contains(text, want) })
}
