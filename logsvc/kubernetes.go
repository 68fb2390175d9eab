package logsvc

import (
	"errors"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/bridge/request"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// defaultMaxLineBytes is many times what people read, and what Go programs that
// read lines tend to put up with at most.
const defaultMaxLineBytes = 128 << 10

// KubernetesConfig is what a Kubernetes needs to know.
type KubernetesConfig struct {
	// REST reaches the API server. It is copied; its timeout and its rate limit
	// are not used, because a log is read for hours and many are opened at once.
	REST *rest.Config
	// Namespaces to look for apps in. Empty: all of them.
	Namespaces []string
	// Lookup is what informers show, without a request to Kubernetes: the Knative
	// Service that is published as an app, nil for none, and whether they have shown
	// every app. It is called at any time, also concurrently. Nil: each search for an
	// app that has not the name that Flyte gives it lists all apps.
	Lookup func(subjects.AppID) (svc *kservice.Service, synced bool)
	// MaxPodStreams is how many logs are read at one time: one for each replica
	// of each stream.
	MaxPodStreams int
	// MaxBytesPerSecond is how much is read of all logs together, where a line counts as
	// 128 bytes at least. 0: no limit.
	MaxBytesPerSecond int64
	// MaxLineBytes is how much of a line is handed out; what follows is counted
	// only. 0: 128 KiB.
	MaxLineBytes int
}

// Kubernetes reads the logs of the pods of Knative Services. It needs the rights
// to get and list services.serving.knative.dev, to get, list and watch pods, and
// to get pods/log, in the namespaces it is given.
type Kubernetes struct {
	namespaces []string
	lookup     func(subjects.AppID) (*kservice.Service, bool)
	maxLine    int
	core       corev1client.CoreV1Interface // pods
	logs       corev1client.CoreV1Interface // the logs of pods
	serving    rest.Interface               // Knative Services
	log        *zap.Logger
	slots      *request.Limiter // of the logs that are read
	calls      *request.Limiter // of other requests
	throttle   *throttle
	metrics    *podMetrics
	pace       podPace
}

// podPace is how long things take that do not happen by themselves.
type podPace struct {
	// answer bounds a request that is not for a log.
	answer time.Duration
	// silence bounds how long a log that is not followed may bring nothing.
	silence time.Duration
	// outage is how long a replica may be unreadable before its reader is told.
	outage time.Duration
	// patience bounds the tries to read what is there already.
	patience time.Duration
	// report is how long a kubelet may take to report that a container was
	// started again.
	report time.Duration
	// poll is how often a container that does not run is looked at.
	poll time.Duration
	// survey is how often a stream that follows lists its pods, and looks for
	// its app when there are none.
	survey time.Duration
}

// NewKubernetes makes a Kubernetes. It connects to nothing yet.
func NewKubernetes(cfg KubernetesConfig, log *zap.Logger, reg prometheus.Registerer) (*Kubernetes, error) {
	var errs []error
	if cfg.REST == nil {
		errs = append(errs, errors.New("the REST configuration is missing"))
	}
	if cfg.MaxPodStreams < 1 {
		errs = append(errs, fmt.Errorf("max pod streams %d: must be at least 1", cfg.MaxPodStreams))
	}
	if cfg.MaxBytesPerSecond < 0 {
		errs = append(errs, fmt.Errorf("max bytes per second %d: must not be negative", cfg.MaxBytesPerSecond))
	}
	if cfg.MaxLineBytes < 0 {
		errs = append(errs, fmt.Errorf("max line bytes %d: must not be negative", cfg.MaxLineBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configure the Kubernetes logs: %w", err)
	}
	k := &Kubernetes{
		namespaces: cfg.Namespaces,
		lookup:     cfg.Lookup,
		maxLine:    cfg.MaxLineBytes,
		log:        log,
		metrics:    newPodMetrics(),
		pace: podPace{
			answer: 15 * time.Second, silence: 30 * time.Second, outage: time.Second,
			patience: 10 * time.Second, report: 3 * time.Second, poll: 2 * time.Second, survey: 10 * time.Second,
		},
	}
	if len(k.namespaces) == 0 {
		k.namespaces = []string{""}
	}
	if k.maxLine == 0 {
		k.maxLine = defaultMaxLineBytes
	}
	k.slots = newPodSlots(cfg.MaxPodStreams)
	k.calls = newCalls()
	k.throttle = newThrottle(cfg.MaxBytesPerSecond)
	if err := k.connect(cfg.REST); err != nil {
		return nil, fmt.Errorf("create the Kubernetes client for logs: %w", err)
	}
	k.metrics.register(reg)
	return k, nil
}

func (k *Kubernetes) connect(cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	cfg.QPS, cfg.RateLimiter = -1, nil
	cfg.WarningHandler = rest.NoWarnings{}

	serving := rest.CopyConfig(cfg)
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		return err
	}
	group := kservice.GroupVersion()
	serving.APIPath, serving.GroupVersion = "/apis", &group
	serving.ContentType, serving.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	serving.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	var err error
	if k.serving, err = rest.RESTClientFor(serving); err != nil {
		return err
	}

	core := rest.CopyConfig(cfg)
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if k.core, err = corev1client.NewForConfig(core); err != nil {
		return err
	}

	// A connection for each log: what a reader holds back then fills the buffers
	// of its own connection, where HTTP/2 would take megabytes for each into this
	// process, and leaves the others alone.
	logs := rest.CopyConfig(cfg)
	logs.NextProtos = []string{"http/1.1"}
	if k.logs, err = corev1client.NewForConfig(logs); err != nil {
		return err
	}
	return nil
}

// PodStreams is how many logs are read at this moment, and how many may be.
func (k *Kubernetes) PodStreams() (active, most int) {
	usage := k.slots.Usage()
	return usage.Active, usage.Max
}
