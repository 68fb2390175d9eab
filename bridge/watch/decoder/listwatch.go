package decoder

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	kjson "sigs.k8s.io/json"

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

// list reads a list of a kind from the body of a response, item by item. The error is errUnusual if
// it is something else, or cannot be read so.
func list(kind string, body io.Reader) (runtime.Object, error) {
	if kind == "Revision" {
		l := &kservice.RevisionList{}
		return l, items(kind, body, &l.ListMeta, &l.Items, (*scanner).revision)
	}
	l := &kservice.ServiceList{}
	return l, items(kind, body, &l.ListMeta, &l.Items, (*scanner).service)
}

// noted is a reader that keeps the error that ended it.
type noted struct {
	io.Reader
	err error
}

func (n *noted) Read(p []byte) (int, error) {
	read, err := n.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.err = err
	}
	return read, err
}

// items reads the metadata and the items of a list.
func items[T any](kind string, body io.Reader, meta *metav1.ListMeta, into *[]T, scan func(*scanner, *T)) error {
	var outer, inner scanner
	var is metav1.TypeMeta
	reader := &noted{Reader: body}
	outer.read(bufio.NewReaderSize(reader, 64<<10))
	outer.fields(func(name []byte) uint {
		switch string(name) {
		case "apiVersion":
			is.APIVersion = outer.word()
			return 1
		case "kind":
			is.Kind = outer.word()
			return 2
		case "metadata":
			outer.plain(meta)
			return 4
		case "items":
			outer.each(func() {
				if item := outer.value(); outer.err == nil {
					*into = append(*into, *new(T))
					outer.err = scanItem(&inner, item, &(*into)[len(*into)-1], scan)
				}
			})
			return 8
		}
		if bytes.EqualFold(name, []byte("kind")) || bytes.EqualFold(name, []byte("apiVersion")) {
			outer.unusual()
		}
		outer.value()
		return 0
	})
	outer.end()
	if reader.err != nil {
		return fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", reader.err)
	}
	if outer.err != nil || is.Kind != kind+"List" || is.APIVersion != kservice.GroupVersion().String() {
		return errUnusual
	}
	return nil
}

// scanItem scans an item. An unusual one is decoded as client-go does.
func scanItem[T any](s *scanner, item []byte, into *T, scan func(*scanner, *T)) error {
	s.scan(item)
	if scan(s, into); s.err == nil {
		return nil
	}
	*into = *new(T)
	if kjson.UnmarshalCaseSensitivePreserveInts(item, into) != nil {
		return errUnusual // client-go reports what it is
	}
	return nil
}
