package bridge

import "github.com/appbridge/appbridge/subjects"

// contentType is the ce-datacontenttype of an encoding.
func (e Encoding) contentType() string {
	if e == EncodingProtobuf {
		return subjects.ContentTypeProtobuf
	}
	return subjects.ContentTypeJSON
}
