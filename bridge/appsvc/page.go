package appsvc

import (
	"bytes"
	"fmt"
	"slices"

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
	// pageOverhead bounds the other fields of a list: a token with three names, and a number.
	pageOverhead = 1100
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
	for {
		item, form, err := appv1.Encode(app, p.form)
		if err != nil {
			return false, fmt.Errorf("encode an item of a list: %w", err)
		}
		if p.apps == 0 {
			p.form = form
		}
		before := p.before(item)
		if form == p.form && p.items.Len()+len(before)+len(item) <= p.room {
			p.items.Write(before)
			p.items.Write(item)
			p.apps++
			return false, nil
		}
		if p.apps > 0 {
			return true, nil
		}
		p.truncated = true
		if app.GetSpec() == nil {
			return false, nil
		}
		app.Spec = nil
	}
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

func (p *page) reply() (*reply, error) {
	rest, _, err := appv1.Encode(&p.rest, p.form)
	if err != nil {
		return nil, fmt.Errorf("encode a list: %w", err)
	}
	rep := &reply{data: rest, header: nats.Header{subjects.HeaderContentType: {p.form}}}
	switch {
	case p.apps == 0:
	case p.form == subjects.ContentTypeProtobuf:
		rep.data = slices.Concat(p.items.Bytes(), rest)
	case string(rest) == "{}":
		rep.data = slices.Concat([]byte(appsOpening), p.items.Bytes(), []byte("]}"))
	default:
		rep.data = slices.Concat([]byte(appsOpening), p.items.Bytes(), []byte("],"), rest[1:])
	}
	if p.truncated {
		rep.header.Set(subjects.HeaderTruncated, subjects.TruncatedSpec)
	}
	return rep, nil
}
