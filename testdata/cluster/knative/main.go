// Command knative runs Knative Serving's own reconcilers and admission webhooks in one process
// beside an API server, for tests and for the demo. Knative's own commands listen on every address;
// this one listens on one address of the loopback interface.
//
// What Knative leaves to others and a cluster without nodes lacks is in here too: an ingress, the
// load that the autoscaler measures at pods, and a scheduler that knows one node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	filteredinformers "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/system"
	"knative.dev/pkg/webhook"
	"knative.dev/serving/pkg/apis/serving"
	"knative.dev/serving/pkg/reconciler/configuration"
	"knative.dev/serving/pkg/reconciler/domainmapping"
	"knative.dev/serving/pkg/reconciler/gc"
	"knative.dev/serving/pkg/reconciler/labeler"
	"knative.dev/serving/pkg/reconciler/nscert"
	"knative.dev/serving/pkg/reconciler/revision"
	"knative.dev/serving/pkg/reconciler/route"
	"knative.dev/serving/pkg/reconciler/serverlessservice"
	"knative.dev/serving/pkg/reconciler/service"
)

// reconcilers are those of Knative's command controller.
var reconcilers = []injection.ControllerConstructor{
	configuration.NewController,
	labeler.NewController,
	revision.NewController,
	route.NewController,
	serverlessservice.NewController,
	service.NewController,
	gc.NewController,
	nscert.NewController,
	domainmapping.NewController,
}

type options struct {
	kubeconfig, namespace, node, listen, certificate, key string
}

func main() {
	var opts options
	flag.StringVar(&opts.kubeconfig, "kubeconfig", "", "the API server, as an administrator")
	flag.StringVar(&opts.namespace, "namespace", "knative-serving", "where Knative's config maps are")
	flag.StringVar(&opts.node, "node", "", "the node that gets every pod; empty: another program places them")
	flag.StringVar(&opts.listen, "listen", "127.0.0.1:0", "the address of the webhooks")
	flag.StringVar(&opts.certificate, "tls-cert", "", "the certificate of the webhooks, PEM")
	flag.StringVar(&opts.key, "tls-key", "", "its key, PEM")
	flag.Parse()
	if err := run(opts); err != nil {
		log.Fatal(err)
	}
}

func run(opts options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := os.Setenv(system.NamespaceEnvKey, opts.namespace); err != nil {
		return err
	}
	cfg, err := injection.GetRESTConfig("", opts.kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // one API server for one user: no limit
	// Bound before anything else: who started this program may have chosen a port that is taken.
	listener, err := net.Listen("tcp", opts.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	// The autoscaler has an informer of its own for the pods of Revisions.
	ctx = filteredinformers.WithSelectors(ctx, serving.RevisionUID)
	ctx, startInformers := injection.EnableInjectionOrDie(ctx, cfg)
	logger, _ := sharedmain.SetupLoggerOrDie(ctx, "knative")
	defer func() { _ = logger.Sync() }()
	ctx = logging.WithLogger(ctx, logger)
	rest.SetDefaultWarningHandler(&logging.WarningHandler{Logger: logger})
	ctx = webhook.WithOptions(ctx, webhook.Options{ServiceName: "webhook"})

	configs := sharedmain.SetupConfigMapWatchOrDie(ctx, logger)
	load := newLoad()
	ctors := append(slices.Clone(reconcilers), newIngress, load.newAutoscaler)
	if opts.node != "" {
		ctors = append(ctors, newScheduler(opts.node))
	}
	controllers, _ := sharedmain.ControllersAndWebhooksFromCtors(ctx, configs, ctors...)
	// The reconcilers of the webhooks would write their certificate into configurations that name a
	// Service; ours name a URL and are complete. So only their handlers are used.
	_, hooks := sharedmain.ControllersAndWebhooksFromCtors(ctx, configs, webhooks...)
	admission, err := webhook.New(ctx, hooks)
	if err != nil {
		return err
	}
	// After all others: what it has seen, they have.
	seen, err := watchSettings(ctx, configs)
	if err != nil {
		return err
	}
	if err := configs.Start(ctx.Done()); err != nil {
		return fmt.Errorf("read the config maps: %w", err)
	}
	startInformers()
	admission.InformersHaveSynced()

	mux := http.NewServeMux()
	mux.Handle("/", admission)
	mux.Handle("GET /settings/{name}", seen)
	mux.Handle("PUT /load/{namespace}/{revision}/{pods}", load)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.ServeTLS(listener, opts.certificate, opts.key); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error { return controller.StartAll(ctx, controllers...) })
	logger.Infof("Webhooks at %s", listener.Addr())
	<-ctx.Done()
	return errors.Join(server.Close(), group.Wait())
}
