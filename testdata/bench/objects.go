package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// What a template has in the places that differ between objects. All have a fixed width, so that an
// object is a copy of its template with some bytes written over.
const (
	markIndex   = "qqqqqq"     // of the app, in names and uids
	markVersion = "1999999999" // resourceVersion
	markTime    = "03:04:05"   // of the last change
	markClock   = "2026-03-01T" + markTime + "Z"

	maxApps      = 999_999
	firstVersion = 1_000_000_000 // so that every version has the width of markVersion
)

// template makes the JSON of objects of one kind and state, in the form of the API server.
type template struct {
	text                    []byte
	index, version, changed []int // offsets of the marks
	meta                    metav1.ObjectMeta
}

func newTemplate(object metav1.Object) (*template, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any // custom resources are served with sorted keys
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if text, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	t := &template{text: text, index: offsets(text, markIndex), version: offsets(text, markVersion), changed: offsets(text, markTime)}
	if len(t.index) == 0 || len(t.version) != 1 || len(t.changed) == 0 {
		return nil, fmt.Errorf("a template has %d indexes, %d versions and %d times", len(t.index), len(t.version), len(t.changed))
	}
	var partial metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &partial); err != nil {
		return nil, err
	}
	t.meta = partial.ObjectMeta
	return t, nil
}

func offsets(text []byte, mark string) (at []int) {
	for from := 0; ; {
		i := bytes.Index(text[from:], []byte(mark))
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(mark)
	}
}

// state is what differs between the versions of an object.
type state struct {
	app     int
	changes int // how often it was changed
	version uint64
}

// append appends the object's JSON.
func (t *template) append(to []byte, s state) []byte {
	start := len(to)
	to = append(to, t.text...)
	out := to[start:]
	var digits [16]byte
	write := func(at []int, text []byte) {
		for _, i := range at {
			copy(out[i:], text)
		}
	}
	write(t.index, padded(digits[:0], s.app))
	write(t.version, strconv.AppendUint(digits[:0], s.version, 10))
	write(t.changed, time.Unix(int64(s.changes), 0).UTC().AppendFormat(digits[:0], time.TimeOnly))
	return to
}

// metadata is what a list of PartialObjectMetadata has of the object.
func (t *template) metadata(s state) metav1.PartialObjectMetadata {
	index := string(padded(nil, s.app))
	m := metav1.PartialObjectMetadata{ObjectMeta: t.meta}
	m.Name = strings.ReplaceAll(m.Name, markIndex, index)
	m.UID = types.UID(strings.ReplaceAll(string(m.UID), markIndex, index))
	m.ResourceVersion = strconv.FormatUint(s.version, 10)
	return m
}

// padded appends the index in the width of markIndex.
func padded(to []byte, index int) []byte {
	return append(to, strconv.Itoa(1_000_000 + index)[1:]...)
}

// templates are those of the Services, which change between two states, and of the Revisions.
type templates struct {
	services [2]*template
	revision *template
}

// newTemplates makes objects of about 3 KB. Without revisions, no Service names one.
func newTemplates(revisions bool) (t templates, err error) {
	for i, ready := range []bool{true, false} {
		if t.services[i], err = newTemplate(knativeService(ready, revisions)); err != nil {
			return t, err
		}
	}
	t.revision, err = newTemplate(knativeRevision())
	return t, err
}

func (t templates) service(s state) *template { return t.services[s.changes%2] }

// flyteService is the Service of an app as Flyte's deploy writes it.
func flyteService() *servingv1.Service {
	return testenv.App{
		Project: "bench", Domain: "production", Name: "app-" + markIndex, Org: "acme",
		Image: "registry.example.com/acme/storefront@sha256:" + strings.Repeat("5e", 32),
		Args:  []string{"serve", "--port=8080", "--workers=4"},
		Env:   map[string]string{"LOG_LEVEL": "info", "CACHE_URL": "redis://cache.storefront.svc:6379/0", "FEATURES": "checkout,search"},
	}.Service()
}

func knativeService(ready, revisions bool) *servingv1.Service {
	svc := flyteService()
	stamp(&svc.ObjectMeta, "00000000-0000-4000-8000-000000"+markIndex, "flyte", "controller")
	svc.Annotations["serving.knative.dev/creator"] = "system:serviceaccount:flyte:flyteapps"
	svc.Annotations["serving.knative.dev/lastModifier"] = "system:serviceaccount:flyte:flyteapps"
	svc.Status.ObservedGeneration = 1
	status, reason, message := corev1.ConditionTrue, "", ""
	if !ready {
		status, reason, message = corev1.ConditionUnknown, "IngressNotConfigured", "Ingress has not yet been reconciled."
	}
	for _, typ := range []apis.ConditionType{servingv1.ServiceConditionConfigurationsReady, servingv1.ServiceConditionReady, servingv1.ServiceConditionRoutesReady} {
		svc.Status.Conditions = append(svc.Status.Conditions, apis.Condition{Type: typ, Status: status, Reason: reason, Message: message})
	}
	setTimes(svc.Status.Conditions)
	host := svc.Name + "." + svc.Namespace
	svc.Status.URL = &apis.URL{Scheme: "https", Host: host + ".example.com"}
	if revisions {
		svc.Status.LatestCreatedRevisionName = svc.Name + "-00001"
		svc.Status.LatestReadyRevisionName = svc.Name + "-00001"
	}
	latest, percent := true, int64(100)
	svc.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: svc.Name + "-00001", LatestRevision: &latest, Percent: &percent}}
	return svc
}

func knativeRevision() *servingv1.Revision {
	svc := flyteService()
	controller, replicas := true, int32(1)
	rev := &servingv1.Revision{
		TypeMeta: metav1.TypeMeta{APIVersion: servingv1.SchemeGroupVersion.String(), Kind: "Revision"},
		ObjectMeta: metav1.ObjectMeta{
			Name: svc.Name + "-00001", Namespace: svc.Namespace,
			Labels: map[string]string{
				"serving.knative.dev/configuration": svc.Name, "serving.knative.dev/configurationGeneration": "1",
				"serving.knative.dev/service": svc.Name, "serving.knative.dev/routingState": "active",
				"serving.knative.dev/configurationUID": "00000000-0000-4000-8002-000000" + markIndex,
				"serving.knative.dev/serviceUID":       "00000000-0000-4000-8000-000000" + markIndex,
			},
			Annotations: map[string]string{
				"serving.knative.dev/creator": "system:serviceaccount:flyte:flyteapps", "serving.knative.dev/routes": svc.Name,
				"serving.knative.dev/routingStateModified": markClock,
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: servingv1.SchemeGroupVersion.String(), Kind: "Configuration", Name: svc.Name,
				UID: "00000000-0000-4000-8002-000000" + markIndex, Controller: &controller, BlockOwnerDeletion: &controller,
			}},
		},
		Spec: svc.Spec.Template.Spec,
	}
	stamp(&rev.ObjectMeta, "00000000-0000-4000-8001-000000"+markIndex, "controller", "autoscaler")
	rev.Status.ObservedGeneration = 1
	rev.Status.InitializeConditions()
	rev.Status.MarkResourcesAvailableTrue()
	rev.Status.MarkContainerHealthyTrue()
	rev.Status.MarkActiveTrue()
	setTimes(rev.Status.Conditions)
	rev.Status.ContainerStatuses = []servingv1.ContainerStatus{{Name: "app", ImageDigest: svc.Spec.Template.Spec.Containers[0].Image}}
	rev.Status.ActualReplicas, rev.Status.DesiredReplicas = &replicas, &replicas
	return rev
}

// stamp adds what the API server does.
func stamp(m *metav1.ObjectMeta, uid types.UID, managers ...string) {
	m.UID, m.ResourceVersion, m.Generation = uid, markVersion, 1
	m.CreationTimestamp = metav1.Date(2026, 3, 1, 1, 2, 3, 0, time.UTC)
	changed := clock()
	for i, manager := range managers {
		entry := metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: servingv1.SchemeGroupVersion.String(), Time: &changed,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:flyte.org/app-id":{},"f:flyte.org/app-org":{},"f:flyte.org/spec":{},"f:flyte.org/spec-sha":{}},"f:labels":{".":{},"f:flyte.org/app-managed":{}}},"f:spec":{".":{},"f:template":{".":{},"f:spec":{".":{},"f:containers":{},"f:timeoutSeconds":{}}}}}`),
		}
		if i > 0 {
			entry.Subresource = "status"
			entry.FieldsV1 = metav1.NewFieldsV1(`{"f:status":{".":{},"f:conditions":{},"f:latestCreatedRevisionName":{},"f:latestReadyRevisionName":{},"f:observedGeneration":{},"f:traffic":{},"f:url":{}}}`)
		}
		m.ManagedFields = append(m.ManagedFields, entry)
	}
}

func setTimes[C ~[]apis.Condition](conditions C) {
	for i := range conditions {
		conditions[i].LastTransitionTime.Inner = clock()
	}
}

// clock is markClock as a time.
func clock() metav1.Time { return metav1.Date(2026, 3, 1, 3, 4, 5, 0, time.UTC) }
