package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// runPlain is what appbridge is compared with: an informer of controller-runtime for Knative's own
// type, whose handler counts. At address it serves /readyz, /count (of updates) and profiles.
func runPlain(ctx context.Context, address, api string) error {
	scheme := runtime.NewScheme()
	if err := servingv1.AddToScheme(scheme); err != nil {
		return err
	}
	managed, err := labels.Parse(testenv.Managed)
	if err != nil {
		return err
	}
	c, err := cache.New(&rest.Config{Host: api}, cache.Options{
		Scheme: scheme, Mapper: mapper(),
		DefaultNamespaces: map[string]cache.Config{testenv.DefaultNamespace: {}},
		ByObject:          map[client.Object]cache.ByObject{&servingv1.Service{}: {Label: managed}},
	})
	if err != nil {
		return err
	}
	var updates atomic.Int64
	informer, err := c.GetInformer(ctx, &servingv1.Service{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, _ any) { updates.Add(1) }})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !registration.HasSynced() {
			http.Error(w, "not synced", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, updates.Load()) })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHTTP(ctx, address, mux) })
	group.Go(func() error { return c.Start(ctx) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// mapper knows the two kinds without asking the stub, which has no discovery.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{servingv1.SchemeGroupVersion})
	m.Add(servingv1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	m.Add(servingv1.SchemeGroupVersion.WithKind("Revision"), meta.RESTScopeNamespace)
	return m
}
