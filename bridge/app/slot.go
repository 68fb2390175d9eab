package app

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// slot is where the bytes of an App take what its pods say: at the end of one of the conditions of
// its status: of the fields that a conversion sets, substate is the last one. The zero value is no
// slot.
//
//	data:  … "conditions":[{…},{"deploymentStatus":…,"message":…}] …
//	                            ^ from, begin                    ^ end
//
// In binary form the condition has its tag and length from from to begin; they are written again if
// there is something to say, since it makes the condition longer.
type slot struct{ from, begin, end int32 }

const (
	conditionsJSON   = `"conditions":[`
	conditionsNumber = 6 // of the conditions in a Status
	substateNumber   = 6 // of substate in a Condition
)

// slotJSON finds a condition of a status in JSON without spaces. In a string, quotes are escaped.
func slotJSON(data []byte, status, index int) slot {
	at := bytes.Index(data[status:], []byte(conditionsJSON))
	if index < 0 || at < 0 {
		return slot{}
	}
	at += status + len(conditionsJSON)
	begin, depth, quoted := 0, 0, false
	for i := at; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			if depth == 0 {
				begin = i + 1
			}
			depth++
		case c == '}' && depth == 1 && index == 0:
			return slot{int32(begin), int32(begin), int32(i)}
		case c == '}':
			if depth--; depth == 0 {
				index--
			}
		}
	}
	return slot{}
}

// slotBinary finds a condition in the fields of a status.
func slotBinary(data []byte, status, index int) slot {
	for at := status; index >= 0 && at < len(data); {
		number, kind, tag := protowire.ConsumeTag(data[at:])
		if tag < 0 {
			break
		}
		length := protowire.ConsumeFieldValue(number, kind, data[at+tag:])
		if length < 0 {
			break
		}
		from, end := at, at+tag+length
		at = end
		if number != conditionsNumber {
			continue
		}
		if index == 0 {
			fields, _ := protowire.ConsumeBytes(data[from+tag:])
			return slot{int32(from), int32(end - len(fields)), int32(end)}
		}
		index--
	}
	return slot{}
}

// saying is the App with what its pods say, if it has the condition for that.
func (e Encoded) saying(said kservice.PodCondition) Encoded {
	if e.slot.end > 0 {
		e.said = said.Substate
	}
	return e
}

// speaks reports whether there is something to say.
func (e Encoded) speaks() bool { return e.said != appv1.Status_SUBSTATE_UNSPECIFIED }

// opening is the tag and the length of the condition.
func (e Encoded) opening(into []byte) []byte {
	if e.form == subjects.ContentTypeJSON {
		return into
	}
	into = protowire.AppendTag(into, conditionsNumber, protowire.BytesType)
	return protowire.AppendVarint(into, uint64(int(e.slot.end-e.slot.begin)+e.closingSize()))
}

// closing is the last field of the condition. In JSON others come before: its status has no zero
// value.
func (e Encoded) closing(into []byte) []byte {
	if e.form == subjects.ContentTypeJSON {
		return append(append(append(into, `,"substate":"`...), e.said.String()...), '"')
	}
	into = protowire.AppendTag(into, substateNumber, protowire.VarintType)
	return protowire.AppendVarint(into, uint64(e.said))
}

func (e Encoded) closingSize() int {
	var room [64]byte
	return len(e.closing(room[:0]))
}

// growth is how many bytes longer the App is for what its pods say.
func (e Encoded) growth() int {
	if !e.speaks() {
		return 0
	}
	var room [16]byte
	return len(e.opening(room[:0])) - int(e.slot.begin-e.slot.from) + e.closingSize()
}
