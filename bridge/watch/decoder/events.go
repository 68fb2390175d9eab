package decoder

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// maxLine is the size beyond which client-go refuses an event.
const maxLine = 16 << 20

// events is the watch.Decoder of one watch. It is not safe for concurrent use, but for Close.
type events struct {
	kind       string
	negotiator runtime.ClientNegotiator
	body       io.ReadCloser
	reader     *bufio.Reader
	line       []byte
	scanner    scanner
	plain      watch.Decoder // what reads the rest of the watch, once its events are not lines
}

func newEvents(kind string, negotiator runtime.ClientNegotiator, body io.ReadCloser) *events {
	return &events{kind: kind, negotiator: negotiator, body: body, reader: bufio.NewReaderSize(body, 16<<10)}
}

// Close closes the body of the watch.
func (e *events) Close() { _ = e.body.Close() }

// Decode returns the next event. Errors are those of client-go's decoder.
func (e *events) Decode() (watch.EventType, runtime.Object, error) {
	if e.plain == nil {
		line, err := e.next()
		if err != nil {
			return "", nil, err
		}
		if action, object, ok := e.event(line); ok {
			return action, object, nil
		}
		if json.Valid(line) {
			one, err := e.clientGo(bytes.NewReader(line))
			if err != nil {
				return "", nil, err
			}
			return one.Decode()
		}
		if e.plain, err = e.clientGo(io.MultiReader(bytes.NewReader(slices.Clone(line)), e.reader)); err != nil {
			return "", nil, err
		}
	}
	return e.plain.Decode()
}

// next returns the next line that is not empty, or what is there of one that has no end.
func (e *events) next() ([]byte, error) {
	for {
		part, err := e.reader.ReadSlice('\n')
		line := part
		if errors.Is(err, bufio.ErrBufferFull) {
			e.line = append(e.line[:0], part...)
			for errors.Is(err, bufio.ErrBufferFull) && len(e.line) <= maxLine {
				part, err = e.reader.ReadSlice('\n')
				e.line = append(e.line, part...)
			}
			line = e.line
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return line, nil // the error comes again
		}
		if err != nil {
			return nil, err
		}
	}
}

func (e *events) event(line []byte) (action watch.EventType, object runtime.Object, ok bool) {
	s := &e.scanner
	s.scan(line)
	s.fields(func(name []byte) uint {
		switch string(name) {
		case "type":
			action = watch.EventType(s.word())
			if action != watch.Added && action != watch.Modified && action != watch.Deleted {
				s.unusual()
			}
			return 1
		case "object":
			object = s.new(e.kind)
			return 2
		}
		s.unusual()
		return 0
	})
	s.end()
	return action, object, s.err == nil && action != "" && object != nil
}

// new reads an object of a kind, without TypeMeta, as client-go's decoder for one object.
func (s *scanner) new(kind string) runtime.Object {
	if kind == "Revision" {
		rev := &kservice.Revision{}
		s.revision(rev)
		return rev
	}
	svc := &kservice.Service{}
	s.service(svc)
	svc.Kind, svc.APIVersion = "", ""
	return svc
}

func (e *events) clientGo(r io.Reader) (watch.Decoder, error) {
	objects, envelope, framer, err := e.negotiator.StreamDecoder(runtime.ContentTypeJSON, nil)
	if err != nil {
		return nil, fmt.Errorf("make client-go's decoder: %w", err)
	}
	return restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(io.NopCloser(r)), envelope), objects), nil
}
