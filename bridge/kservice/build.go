package kservice

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/autoscaling"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// DeployConfig configures the Knative Services of apps.
type DeployConfig struct {
	Namespace             string            // of the Knative Service
	DefaultRequestTimeout time.Duration     // of apps that have none; the maximum does not apply to it, but see MaxTimeoutSeconds
	MaxRequestTimeout     time.Duration     // replaces longer ones; 0: no maximum
	DefaultEnv            map[string]string // precedes the environment of the app, sorted by key
	DefaultServiceAccount string            // of apps that name none; empty: that of the app's pod spec, if any
	// SuffixTemplate follows the name of an app in the internal host name of its Knative Service,
	// with "{{ project }}" and "{{ domain }}" replaced, for example "{{ project }}-{{ domain }}".
	SuffixTemplate string
	Policy         Policy // bounds the objects that an app may refer to
}

// flyteMaxTimeout is max-revision-timeout-seconds of Knative in a cluster for Flyte's apps.
const flyteMaxTimeout = 3600

// MaxTimeoutSeconds is the longest request timeout that Knative accepts: an hour, unless the
// configured maximum says that the cluster allows more. Deploys with a longer default are refused.
func (c DeployConfig) MaxTimeoutSeconds() int64 {
	if c.MaxRequestTimeout < time.Second {
		return math.MaxInt64 // no maximum
	}
	return max(int64(c.MaxRequestTimeout/time.Second), flyteMaxTimeout)
}

const (
	// maxAnnotations is what Kubernetes allows the annotations of an object to be in total.
	maxAnnotations = 256 << 10
	// maxDepth is below the limit of protobuf decoders, since events nest the spec some messages
	// deeper.
	maxDepth = 9000
	// maxOrgBytes bounds the organization, since Kubernetes does not, so that the app fits into a
	// message.
	maxOrgBytes = 253
)

// SpecDigest is the value of AnnotationSpecSHA: the first 8 bytes of the SHA-256 of a spec, in hex.
func SpecDigest(wire []byte) string {
	sum := sha256.Sum256(wire)
	return hex.EncodeToString(sum[:8])
}

// Build reads an app before a deploy and returns its Knative Service: what Flyte makes of the app,
// without any default of Knative. The same app and configuration give the same bytes. Unknown
// fields of the spec stay in it. The app is not changed, and shares nothing with the Service.
//
// wrong has the problems, each with the field in protobuf JSON and its value: what a Service cannot
// express, and what Kubernetes rejects. What Knative rejects is for [Check]. Of app.metadata only
// the organization is validated. denied has the fields that reach beyond the app, each with the
// option that would allow it. Both lists are bounded, and end with the number of omitted entries.
// The Service is nil if the spec has problems or denied fields; a wrong id or organization alone
// does not prevent it.
func Build(id subjects.AppID, app *appv1.App, cfg DeployConfig) (svc *servingv1.Service, wrong, denied []string) {
	found, beyond := &Problems{}, &Problems{}
	checkID(id, found)
	if org := app.GetMetadata().GetId().GetOrg(); len(org) > maxOrgBytes {
		found.Add("app.metadata.id.org", fmt.Sprintf("%s: is %d bytes, want at most %d", Quote(org), len(org), maxOrgBytes))
	}
	before := found.count()
	svc = build(id, app, cfg, found, beyond)
	if found.count() > before || beyond.count() > 0 {
		svc = nil
	}
	return svc, found.Texts(), beyond.Texts()
}

// build builds the Service as far as possible, and collects the problems and the denials of the
// policy. A spec that is too large has no Service.
func build(id subjects.AppID, app *appv1.App, cfg DeployConfig, found, denied *Problems) *servingv1.Service {
	spec := app.GetSpec()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		// protobuf varies the space in its texts on purpose.
		found.Add("app.spec", strings.ReplaceAll(err.Error(), "\u00a0", " "))
	} else if (proto.UnmarshalOptions{RecursionLimit: maxDepth}).Unmarshal(wire, &appv1.Spec{}) != nil {
		found.Add("app.spec", "is nested too deeply to be read again")
	}
	written := base64.StdEncoding.EncodeToString(wire)
	if !found.checkAnnotations(len(written)) {
		return nil // a pod takes many times the memory of its spec
	}
	svc := &servingv1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion().String(), Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      Name(id),
			Namespace: cfg.Namespace,
			Labels: map[string]string{
				LabelManaged: labelTrue,
				LabelProject: id.Project,
				LabelDomain:  id.Domain,
				LabelAppName: id.Name,
			},
			Annotations: map[string]string{
				AnnotationAppID:   id.String(),
				AnnotationOrg:     app.GetMetadata().GetId().GetOrg(),
				AnnotationSpec:    written,
				AnnotationSpecSHA: SpecDigest(wire),
			},
		},
	}
	template := &svc.Spec.Template
	template.Spec.PodSpec = podSpec(spec, found)
	template.Spec.TimeoutSeconds = new(timeoutSeconds(spec.GetTimeouts(), cfg, found))
	policy := &policyCheck{id: id, cfg: cfg, denied: denied, accountField: accountField(spec)}
	pod := &template.Spec.PodSpec
	pod.ServiceAccountName = cmp.Or(spec.GetSecurityContext().GetRunAs().GetK8SServiceAccount(), cfg.DefaultServiceAccount, pod.ServiceAccountName)
	policy.pod(pod) // before the environment moves the app's own variables
	addEnv(pod, id, cfg)
	addScaling(template, spec.GetAutoscaling(), found)
	addSecrets(template, id, spec.GetSecurityContext().GetSecrets(), policy, found)
	checkSize(svc, found)
	return svc
}

func checkSize(svc *servingv1.Service, found *Problems) {
	for _, annotations := range []map[string]string{svc.Annotations, svc.Spec.Template.Annotations} {
		size := 0
		for key, value := range annotations {
			size += len(key) + len(value)
		}
		found.checkAnnotations(size)
	}
}

func (p *Problems) checkAnnotations(size int) bool {
	if size > maxAnnotations {
		p.Add("app.spec", fmt.Sprintf("takes %d bytes of annotations, want at most %d", size, maxAnnotations))
	}
	return size <= maxAnnotations
}

// timeoutSeconds is the request timeout without its fraction.
func timeoutSeconds(timeouts *appv1.TimeoutConfig, cfg DeployConfig, found *Problems) int64 {
	wanted := timeouts.GetRequestTimeout()
	if wanted == nil {
		return int64(cfg.DefaultRequestTimeout / time.Second)
	}
	const field = "app.spec.timeouts.requestTimeout"
	found.checkDuration(field, wanted)
	if wanted.GetSeconds() == 0 && wanted.GetNanos() < 0 { // Knative would see 0
		found.AddValue(field, wanted.AsDuration().String(), "no negative duration")
	}
	most := int64(cfg.MaxRequestTimeout / time.Second)
	if most > 0 && wanted.GetSeconds() > most {
		return most
	}
	return wanted.GetSeconds()
}

func annotate(template *servingv1.RevisionTemplateSpec, key, value string) {
	if template.Annotations == nil {
		template.Annotations = map[string]string{}
	}
	template.Annotations[key] = value
}

func addScaling(template *servingv1.RevisionTemplateSpec, scaling *appv1.AutoscalingConfig, found *Problems) {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	if replicas := scaling.GetReplicas(); replicas != nil {
		annotate(template, autoscaling.MinScaleAnnotationKey, number(replicas.GetMin()))
		annotate(template, autoscaling.MaxScaleAnnotationKey, number(replicas.GetMax()))
	}
	switch metric := scaling.GetScalingMetric().GetMetric().(type) {
	case *appv1.ScalingMetric_RequestRate:
		annotate(template, autoscaling.MetricAnnotationKey, autoscaling.RPS)
		annotate(template, autoscaling.TargetAnnotationKey, number(metric.RequestRate.GetTargetValue()))
	case *appv1.ScalingMetric_Concurrency:
		annotate(template, autoscaling.MetricAnnotationKey, autoscaling.Concurrency)
		annotate(template, autoscaling.TargetAnnotationKey, number(metric.Concurrency.GetTargetValue()))
	}
	if period := scaling.GetScaledownPeriod(); period != nil {
		found.checkDuration("app.spec.autoscaling.scaledownPeriod", period)
		annotate(template, autoscaling.WindowAnnotationKey, period.AsDuration().String())
	}
}
