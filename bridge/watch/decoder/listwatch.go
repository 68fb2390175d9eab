package decoder

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// Client makes the requests. It is safe for concurrent use.
type Client struct {
	rest       rest.Interface
	negotiator runtime.ClientNegotiator
	params     runtime.ParameterCodec
}

// NewClient makes a client for the kinds of a scheme, which has those of package kservice.
func NewClient(cfg *rest.Config, scheme *runtime.Scheme) (*Client, error) {
	gv := kservice.GroupVersion()
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion, cfg.NegotiatedSerializer = "/apis", &gv, codecs
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client of the informers: %w", err)
	}
	return &Client{rest: client, negotiator: runtime.NewClientNegotiator(codecs, gv), params: runtime.NewParameterCodec(scheme)}, nil
}

// ListWatch lists and watches the objects of a kind, Service or Revision, in a namespace, or in all.
func (c *Client) ListWatch(kind, resource, namespace string, selector labels.Selector) *toolscache.ListWatch {
	request := func(opts metav1.ListOptions) *rest.Request {
		opts.LabelSelector = selector.String()
		return c.rest.Get().NamespaceIfScoped(namespace, namespace != metav1.NamespaceAll).Resource(resource).VersionedParams(&opts, c.params)
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return c.list(ctx, kind, request(opts))
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.Watch, opts.AllowWatchBookmarks = true, true
			return c.watch(ctx, kind, request(opts))
		},
	}
}

func (c *Client) list(ctx context.Context, kind string, request *rest.Request) (runtime.Object, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	read, err := list(kind, body)
	_ = body.Close()
	if !errors.Is(err, errUnusual) {
		return read, err
	}
	return request.Do(ctx).Get()
}

func (c *Client) watch(ctx context.Context, kind string, request *rest.Request) (watch.Interface, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	return watch.NewStreamWatcherWithLogger(klog.FromContext(ctx), newEvents(kind, c.negotiator, body),
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}
