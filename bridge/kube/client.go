package kube

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PageSize is the number of objects in one page of a list.
const PageSize = 500

// EachPage lists objects and calls each with every page, which it may keep. The list is consistent:
// it has no resourceVersion, and every page is of the version of the first one. It ends with the
// first error. An expired list is such an error: the next try starts from the first page.
func EachPage[L client.ObjectList](ctx context.Context, c client.Reader, newPage func() L, each func(L) error, opts ...client.ListOption) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := newPage()
		if err := List(ctx, c, page, append(slices.Clone(opts), client.Limit(o.Limit), client.Continue(o.Continue))...); err != nil {
			return nil, err
		}
		if err := each(page); err != nil {
			return nil, err
		}
		// Without the items, of which the pager would collect those of all pages.
		return &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: page.GetResourceVersion(), Continue: page.GetContinue()}}, nil
	})
	pages.PageSize, pages.FullListIfExpired = PageSize, false
	_, _, err := pages.List(ctx, metav1.ListOptions{})
	return err
}

// List is one request of at most Timeout.
func List(ctx context.Context, c client.Reader, list client.ObjectList, opts ...client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.List(ctx, list, opts...)
}

// Timeout bounds one request of the bridge to Kubernetes.
const Timeout = 15 * time.Second

// Protobuf returns a copy of cfg that prefers protobuf, for the resources of Kubernetes itself.
func Protobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return cfg
}
