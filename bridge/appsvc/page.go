package appsvc

import (
	"bytes"
	"fmt"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// page is the part of a list that fits into a message. Each App is encoded once.
type page struct {
	form      string
	room      int
	apps      int
	items     bytes.Buffer       // the field apps of the answer
	rest      appv1.ListResponse // its other fields
	truncated bool               // an app lacks its spec
}

const (
	// pageOverhead bounds the other fields of a list: a token with two names, and a number.
	pageOverhead = 540
	// The field apps of a ListResponse, which comes first in either form.
	appsField   = protowire.Number(1)
	appsOpening = `{"apps":[`
)

// newPage returns a page whose reply has at most room bytes.
func newPage(form string, room int) *page { return &page{form: form, room: room - pageOverhead} }

// add adds an app to the page unless the page is full. An app that does not fit on an empty page
// loses its spec, and is skipped if that is not enough. An app that JSON cannot express begins a
// new page, in binary.
func (p *page) add(app *appv1.App) (full bool, err error) {
	item, form, err := appv1.Encode(app, p.form)
	if err != nil {
		return false, fmt.Errorf("encode an item of a list: %w", err)
	}
	if form != p.form {
		if p.apps > 0 {
			return true, nil
		}
		p.form = form
	}
	if p.items.Len()+len(p.before(item))+len(item) > p.room {
		if p.apps > 0 {
			return true, nil
		}
		app.Spec = nil
		if item, form, err = appv1.Encode(app, p.form); err != nil {
			return false, fmt.Errorf("encode an item of a list: %w", err)
		}
		p.form, p.truncated = form, true
		if len(p.before(item))+len(item) > p.room {
			return false, nil
		}
	}
	p.items.Write(p.before(item))
	p.items.Write(item)
	p.apps++
	return false, nil
}

// before is the separator or header before an item.
func (p *page) before(item []byte) []byte {
	switch {
	case p.form == subjects.ContentTypeProtobuf:
		return protowire.AppendVarint(protowire.AppendTag(nil, appsField, protowire.BytesType), uint64(len(item)))
	case p.apps > 0:
		return []byte{','}
	default:
		return nil
	}
}

// reply is the encoded ListResponse.
func (p *page) reply() (*reply, error) {
	rest, _, err := appv1.Encode(&p.rest, p.form)
	if err != nil {
		return nil, fmt.Errorf("encode a list: %w", err)
	}
	rep := &reply{data: rest, header: nats.Header{subjects.HeaderContentType: {p.form}}}
	if p.apps > 0 {
		data := make([]byte, 0, len(appsOpening)+p.items.Len()+len(rest)+len("],"))
		if p.form == subjects.ContentTypeJSON {
			data = append(append(append(data, appsOpening...), p.items.Bytes()...), ']')
			if rest = rest[1:]; len(rest) > 1 { // more than the closing brace
				data = append(data, ',')
			}
		} else {
			data = append(data, p.items.Bytes()...)
		}
		data = append(data, rest...)
		rep.data = data
	}
	if p.truncated {
		rep.header.Set(subjects.HeaderTruncated, subjects.TruncatedSpec)
	}
	return rep, nil
}
