package decoder

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// list reads a list of a kind from the body of a response, item by item. The error is errUnusual if
// it is something else, or cannot be read so.
func list(kind string, body io.Reader) (runtime.Object, error) {
	reader := &noted{Reader: body}
	if kind == "Revision" {
		l := &kservice.RevisionList{}
		err := items(kind, reader, &l.ListMeta, func(s *scanner, item []byte) error {
			l.Items = append(l.Items, kservice.Revision{})
			return scanItem(s, item, &l.Items[len(l.Items)-1], s.revision)
		})
		return l, err
	}
	l := &kservice.ServiceList{}
	err := items(kind, reader, &l.ListMeta, func(s *scanner, item []byte) error {
		l.Items = append(l.Items, kservice.Service{})
		return scanItem(s, item, &l.Items[len(l.Items)-1], s.service)
	})
	return l, err
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

// items reads the metadata of a list, and calls each with every item.
func items(kind string, reader *noted, meta *metav1.ListMeta, each func(s *scanner, item []byte) error) error {
	var outer, inner scanner
	var is metav1.TypeMeta
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
					outer.err = each(&inner, item)
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
func scanItem[T any](s *scanner, item []byte, into *T, scan func(*T)) error {
	s.scan(item)
	if scan(into); s.err == nil {
		return nil
	}
	*into = *new(T)
	if kjson.UnmarshalCaseSensitivePreserveInts(item, into) != nil {
		return errUnusual // client-go reports what it is
	}
	return nil
}
