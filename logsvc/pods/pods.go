package pods

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// Config configures a Source.
type Config struct {
	// REST is the connection to the API server. It is copied; its timeout and its rate limit
	// are not used: a log is read for hours, and many are opened at once.
	REST *rest.Config
	// Namespaces are those of the apps. Empty: all namespaces.
	Namespaces []string
	// Lookup returns the Knative Service that is published as an app from the cache of an
	// informer, nil if there is none, and whether the cache has synced. It may be called
	// concurrently. Nil: a search for an app whose Service does not have the name that Flyte
	// gives it lists all apps.
	Lookup func(subjects.AppID) (svc *kservice.Service, synced bool)
	// MaxPodStreams is how many logs are read at a time, one for each replica of each stream. At
	// least 1.
	MaxPodStreams int
	// MaxBytesPerSecond is the read rate of all logs together. A line counts as at least 128
	// bytes. 0: no limit.
	MaxBytesPerSecond int64
}

// Source reads the logs of the pods of Knative Services: a logsvc.LogStreamer. It needs permission
// to get and list services.serving.knative.dev, to get, list and watch pods, and to get pods/log in
// its namespaces.
type Source struct {
	namespaces []string
	lookup     func(subjects.AppID) (*kservice.Service, bool)
	core       corev1client.CoreV1Interface // pods
	logs       corev1client.CoreV1Interface // the logs of pods
	serving    rest.Interface               // Knative Services
	log        *zap.Logger
	slots      *request.Limiter // for logs that are read
	calls      *request.Limiter // for other requests to the API server
	throttle   *throttle
	metrics    *metrics
	timing     timing
}

// timing holds timeouts and intervals; tests shorten them.
type timing struct {
	answer     time.Duration // timeout of a request that is not for a log
	unanswered time.Duration // how long a request for a log may be unanswered without a note to the reader
	silence    time.Duration // read timeout of a log that is not followed
	outage     time.Duration // how long a replica may be unreadable without a note to the reader
	patience   time.Duration // how long a log that is not followed is retried
	poll       time.Duration // how often the state of a container that does not run is read
	unseen     time.Duration // how long the pods of a stream may not be listed without a note to the reader
	resync     time.Duration // how often a stream that follows lists its pods, and its app if it has none
}

// New returns a Source. It connects to nothing yet.
func New(cfg Config, log *zap.Logger, reg prometheus.Registerer) (*Source, error) {
	src := &Source{
		namespaces: cfg.Namespaces,
		lookup:     cfg.Lookup,
		log:        log,
		slots:      request.NewLimiter(request.Limit{Option: "max-pod-streams", What: "Kubernetes log streams", Max: cfg.MaxPodStreams}),
		calls:      newCalls(),
		throttle:   newThrottle(cfg.MaxBytesPerSecond),
		timing: timing{
			answer: 15 * time.Second, unanswered: time.Second, silence: 30 * time.Second, outage: time.Second,
			patience: 10 * time.Second, poll: 2 * time.Second, resync: 10 * time.Second, unseen: 30 * time.Second,
		},
	}
	if len(src.namespaces) == 0 {
		src.namespaces = []string{""}
	}
	if err := src.connect(cfg.REST); err != nil {
		return nil, fmt.Errorf("create the Kubernetes client for logs: %w", err)
	}
	src.metrics = newMetrics(reg, func() float64 { return float64(src.slots.Usage().Active) }, cfg.MaxPodStreams)
	return src, nil
}

func (src *Source) connect(cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	cfg.WarningHandler = rest.NoWarnings{}
	short, err := kube.Bounded(cfg)
	if err != nil {
		return err
	}

	serving := rest.CopyConfig(short)
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		return err
	}
	group := kservice.GroupVersion()
	serving.APIPath, serving.GroupVersion = "/apis", &group
	serving.ContentType, serving.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	serving.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if src.serving, err = rest.RESTClientFor(serving); err != nil {
		return err
	}

	if src.core, err = corev1client.NewForConfig(kube.Protobuf(short)); err != nil {
		return err
	}

	// One connection for each log: the log of a slow reader then fills the buffers of its own
	// connection and does not block the others. HTTP/2 would buffer megabytes of each log in
	// this process.
	cfg.NextProtos = []string{"http/1.1"}
	logs, err := kube.Bounded(cfg)
	if err != nil {
		return err
	}
	src.logs, err = corev1client.NewForConfig(logs)
	return err
}

// PodStreams returns how many logs are read now, and the limit.
func (src *Source) PodStreams() (active, most int) {
	usage := src.slots.Usage()
	return usage.Active, usage.Max
}
