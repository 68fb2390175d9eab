package testenv

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// The keys that Flyte writes on a Knative Service. They are spelled out here
// and not taken from the conversion, so that a typing error there is found.
const (
	labelManaged    = "flyte.org/app-managed"
	labelProject    = "flyte.org/project"
	labelDomain     = "flyte.org/domain"
	labelName       = "flyte.org/app-name"
	labelStopped    = "flyte.org/app-stopped"
	labelVisibility = "networking.knative.dev/visibility"

	annotationID      = "flyte.org/app-id"
	annotationOrg     = "flyte.org/app-org"
	annotationSpec    = "flyte.org/spec"
	annotationSpecSHA = "flyte.org/spec-sha"

	annotationMinScale     = "autoscaling.knative.dev/min-scale"
	annotationMaxScale     = "autoscaling.knative.dev/max-scale"
	annotationWindow       = "autoscaling.knative.dev/window"
	annotationInitialScale = "autoscaling.knative.dev/initial-scale"

	// Managed is the label selector of the Knative Services that belong to Flyte.
	Managed = labelManaged + "=true"
)

// App describes an app as its author would; Service is what Flyte's deploy
// makes of it. Project, Domain and Name are needed, all else has a default.
type App struct {
	Project, Domain, Name string
	Org                   string // written as is, also when empty

	// Namespace of the Knative Service. Empty: DefaultNamespace.
	Namespace string
	// ObjectName of the Knative Service. Empty: the canonical name, which is
	// not a legal one for every id.
	ObjectName string

	Image    string // Empty: a sample image
	Port     uint32 // 0: 8080
	Args     []string
	Env      map[string]string
	Replicas *appv1.Replicas // nil: no bounds

	// Spec, when set, is used in place of one built from Image to Replicas.
	Spec *appv1.Spec

	// Labels and Annotations are merged over what Flyte writes; an empty value
	// takes the key away.
	Labels, Annotations map[string]string
}

// ID is the app's identity.
func (a App) ID() subjects.AppID {
	return subjects.AppID{Project: a.Project, Domain: a.Domain, Name: a.Name}
}

// AppOf is the App that a Service was built from.
func AppOf(svc *servingv1.Service) (App, error) {
	id := strings.SplitN(svc.Annotations[annotationID], "/", 3)
	if len(id) != 3 {
		return App{}, fmt.Errorf("the app id of %s is %q, want project/domain/name", svc.Name, svc.Annotations[annotationID])
	}
	encoded, err := base64.StdEncoding.DecodeString(svc.Annotations[annotationSpec])
	if err != nil {
		return App{}, fmt.Errorf("decode the spec of %s: %w", svc.Name, err)
	}
	spec := &appv1.Spec{}
	if err := proto.Unmarshal(encoded, spec); err != nil {
		return App{}, fmt.Errorf("decode the spec of %s: %w", svc.Name, err)
	}
	return App{
		Project: id[0], Domain: id[1], Name: id[2], Org: svc.Annotations[annotationOrg],
		Namespace: svc.Namespace, ObjectName: svc.Name, Spec: spec,
	}, nil
}

// spec is the App's Spec.
func (a App) spec() *appv1.Spec {
	if a.Spec != nil {
		return a.Spec
	}
	container := &appv1.Container{
		Image: cmp.Or(a.Image, "registry.example.com/hello:1"),
		Args:  a.Args,
		Ports: []*appv1.ContainerPort{{ContainerPort: cmp.Or(a.Port, 8080)}},
	}
	for _, key := range slices.Sorted(maps.Keys(a.Env)) {
		container.Env = append(container.Env, &appv1.KeyValuePair{Key: key, Value: a.Env[key]})
	}
	spec := &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: container}}
	if a.Replicas != nil {
		spec.Autoscaling = &appv1.AutoscalingConfig{Replicas: a.Replicas}
	}
	return spec
}

// Service is the Knative Service that Flyte's deploy writes for the app: a
// container payload only. A label whose value Kubernetes would refuse is left
// out; such an app is known by its annotation alone. It panics when the Spec
// cannot be encoded, which is a mistake in the test.
func (a App) Service() *servingv1.Service {
	spec := a.spec()
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("encode the spec of %s: %v", a.ID(), err))
	}
	digest := sha256.Sum256(encoded)
	namespace := cmp.Or(a.Namespace, DefaultNamespace)
	svc := &servingv1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: serviceKind.GroupVersion().String(), Kind: serviceKind.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name:      cmp.Or(a.ObjectName, kservice.Name(a.ID())),
			Namespace: namespace,
			Labels:    map[string]string{labelManaged: "true"},
			Annotations: map[string]string{
				annotationID:      a.Project + "/" + a.Domain + "/" + a.Name,
				annotationOrg:     a.Org,
				annotationSpec:    base64.StdEncoding.EncodeToString(encoded),
				annotationSpecSHA: hex.EncodeToString(digest[:8]),
			},
		},
	}
	for key, value := range map[string]string{labelProject: a.Project, labelDomain: a.Domain, labelName: a.Name} {
		if len(validation.IsValidLabelValue(value)) == 0 {
			svc.Labels[key] = value
		}
	}
	merge(svc.Labels, a.Labels)
	merge(svc.Annotations, a.Annotations)
	svc.Spec.Template.Annotations = scale(spec.GetAutoscaling())
	svc.Spec.Template.Spec = a.revisionSpec(spec, namespace)
	return svc
}

func (a App) revisionSpec(spec *appv1.Spec, namespace string) servingv1.RevisionSpec {
	payload := spec.GetContainer()
	container := corev1.Container{
		Name:    "app",
		Image:   payload.GetImage(),
		Command: payload.GetCommand(),
		Args:    payload.GetArgs(),
	}
	for _, port := range payload.GetPorts() {
		container.Ports = append(container.Ports, corev1.ContainerPort{
			Name:          port.GetName(),
			ContainerPort: int32(port.GetContainerPort()),
		})
	}
	for _, env := range payload.GetEnv() {
		container.Env = append(container.Env, corev1.EnvVar{Name: env.GetKey(), Value: env.GetValue()})
	}
	container.Resources = corev1.ResourceRequirements{
		Requests: resources(payload.GetResources().GetRequests()),
		Limits:   resources(payload.GetResources().GetLimits()),
	}
	suffix := strings.ToLower(a.Project) + "-" + strings.ToLower(a.Domain)
	container.Env = append(container.Env,
		corev1.EnvVar{Name: "INTERNAL_APP_ENDPOINT_PATTERN", Value: "http://{app_fqdn}-" + suffix + "." + namespace + ".svc.cluster.local"},
		corev1.EnvVar{Name: "FLYTE_INTERNAL_EXECUTION_PROJECT", Value: a.Project},
		corev1.EnvVar{Name: "FLYTE_INTERNAL_EXECUTION_DOMAIN", Value: a.Domain},
	)
	links := false
	timeout := int64(5 * time.Minute / time.Second)
	return servingv1.RevisionSpec{
		PodSpec:        corev1.PodSpec{Containers: []corev1.Container{container}, EnableServiceLinks: &links},
		TimeoutSeconds: &timeout,
	}
}

// resources leaves out what Flyte leaves out (GPUs, unknown names) and panics,
// as it does, on a bad quantity.
func resources(entries []*appv1.Resources_ResourceEntry) corev1.ResourceList {
	names := map[appv1.Resources_ResourceName]corev1.ResourceName{
		appv1.Resources_CPU:               corev1.ResourceCPU,
		appv1.Resources_MEMORY:            corev1.ResourceMemory,
		appv1.Resources_STORAGE:           corev1.ResourceStorage,
		appv1.Resources_EPHEMERAL_STORAGE: corev1.ResourceEphemeralStorage,
	}
	var list corev1.ResourceList
	for _, entry := range entries {
		if name, ok := names[entry.GetName()]; ok {
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[name] = resource.MustParse(entry.GetValue())
		}
	}
	return list
}

// scale is what Flyte writes for bounds and scale-down period; it knows scaling
// metrics, too, which no App here needs.
func scale(autoscaling *appv1.AutoscalingConfig) map[string]string {
	annotations := map[string]string{}
	if replicas := autoscaling.GetReplicas(); replicas != nil {
		annotations[annotationMinScale] = strconv.FormatUint(uint64(replicas.GetMin()), 10)
		annotations[annotationMaxScale] = strconv.FormatUint(uint64(replicas.GetMax()), 10)
	}
	if period := autoscaling.GetScaledownPeriod(); period != nil {
		annotations[annotationWindow] = period.AsDuration().String()
	}
	if len(annotations) == 0 {
		return nil
	}
	return annotations
}

// merge copies over into base; an empty value takes the key away.
func merge(base, over map[string]string) {
	maps.Copy(base, over)
	maps.DeleteFunc(base, func(key, value string) bool {
		_, asked := over[key]
		return asked && value == ""
	})
}
