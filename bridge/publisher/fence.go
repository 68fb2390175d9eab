package publisher

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// This file is the fence: what the stream checks before it stores an event, and what the publisher
// does after each answer. It does no I/O.
//
// An append carries two expectations. The stream stores the event only if both hold:
//
//	Nats-Expected-Last-Sequence          c: the stream ends at sequence c
//	Nats-Expected-Last-Subject-Sequence  the app's last message has this sequence ("the app's fence")
//
// So an append is stored at c+1 or nowhere. After any answer but "stored at c+1" sending stops, and
// the publisher reads from the stream's leader every message that it does not account for yet
// (identify, checkEnd). An event among them is published. For any other event, resolution.next
// decides:
//
//	answer                                    next
//	stored at c+1                             done
//	duplicate of an earlier message           read that message (afterOriginal)
//	10054 message too large                   encode it again under the limit of now, if no try can be stored
//	10071 wrong last sequence                 read the app's last message (afterLast) if no event ahead of
//	                                          it is pending; else send it again behind that one
//	10158 duplicate message id in process     send it again (streams of several replicas)
//	10164 subject filter in process           send it again (streams of several replicas)
//	any other error of the server             send it again
//	none: timeout, disconnected, not sent     send it again
//
// The stream may have lost the message that an app's fence names (retention, a purge, a restore).
// Then the app's last message is read as after 10071.

// Error codes with which a stream refuses an append for its fence.
const (
	codeDuplicateInProcess jetstream.ErrorCode = 10158 // a message with this id is in process (R>1)
	codeFilterInProcess    jetstream.ErrorCode = 10164 // a message of this app is in process (R>1)
)

// farBehind is how many messages of unknown origin a publisher reads. A new session is quicker if
// there are more.
const farBehind = 4 * publishWindow

// outcome is the result of one try to append an event.
type outcome int

const (
	outcomeUnknown   outcome = iota // not answered yet: it is stored at c+1 or nowhere
	outcomeMissing                  // no answer will come: it is stored at c+1 or nowhere
	outcomeStored                   // it is stored at c+1
	outcomeDuplicate                // it is not stored: an earlier message has its id
	outcomeRefused                  // it is not stored
)

// answer is the stream's answer to one try.
type answer struct {
	outcome  outcome
	sequence uint64 // where the event is stored, or the earlier message with its id
	err      error  // why it is refused, or why there is no answer
}

// answerOf returns what an acknowledgement or an error says about a try that expected the stream to
// end at c.
func answerOf(c uint64, ack *jetstream.PubAck, err error) answer {
	switch {
	case err != nil && store.ErrorCodeOf(err) != 0:
		return answer{outcome: outcomeRefused, err: err}
	case err != nil:
		return answer{outcome: outcomeMissing, err: err}
	case ack.Duplicate || ack.Sequence != c+1:
		return answer{outcome: outcomeDuplicate, sequence: ack.Sequence}
	default:
		return answer{outcome: outcomeStored, sequence: ack.Sequence}
	}
}

// isConflict reports whether the fence refused the event. The appends behind it are refused too.
func (a answer) isConflict() bool {
	switch store.ErrorCodeOf(a.err) {
	case store.CodeWrongLastSequence, codeDuplicateInProcess, codeFilterInProcess:
		return true
	default:
		return false
	}
}

// step is what the publisher does next with an event.
type step int

const (
	stepDone         step = iota // it is in the stream
	stepSendAgain                // with its fence as it is
	stepEncodeAgain              // smaller, then send it again
	stepReadLast                 // read the app's last message
	stepReadOriginal             // read the earlier message with its id
	stepMoveFence                // set the app's fence, then send it again
	stepNewID                    // encode it again with another id
	stepEndSession               // another bridge publishes
)

// resolution is what is known of an event once every message of the stream is accounted for.
type resolution struct {
	stored    bool   // it is in the stream
	answer    answer // to the newest try
	open      bool   // a try may still be stored
	first     bool   // no event ahead of it is pending
	fenceGone bool   // the stream has lost the message that the app's fence names
}

func (f resolution) next() step {
	code := store.ErrorCodeOf(f.answer.err)
	switch {
	case f.stored:
		return stepDone
	case f.answer.outcome == outcomeDuplicate:
		return stepReadOriginal
	case code == store.CodeMessageTooLarge && !f.open:
		return stepEncodeAgain
	case code == store.CodeWrongLastSequence && f.first, f.fenceGone:
		return stepReadLast
	default:
		return stepSendAgain
	}
}

// origin is whose a message of the stream is.
type origin int

const (
	originNone    origin = iota // there is no message
	originThis                  // it is the event that the publisher sent
	originOther                 // it is another event: another bridge publishes
	originForeign               // it is no event, but on an app's subject
	originNoApp                 // it is on the subject of no app
)

// identify returns the app and the origin of a message. ev is the event that may have been stored
// there, nil for none; the record is that of the message if it is ev. The id alone is not enough:
// the kind and the number of replicas are not part of it.
func identify(m *store.Message, ev *app.Event, s subjects.Subjects) (subjects.AppID, origin, *app.Record) {
	if m == nil {
		return subjects.AppID{}, originNone, nil
	}
	id, _, err := s.ParseEvent(m.Subject)
	if err != nil {
		return id, originNoApp, nil
	}
	r, err := m.Record(s)
	switch {
	case err != nil:
		return id, originForeign, nil
	case ev == nil || m.Subject != ev.Msg.Subject || m.Header.Get(subjects.HeaderMsgID) != ev.Msg.Header.Get(subjects.HeaderMsgID),
		r.Kind != subjects.Deleted && !app.SameApp(r.App, ev.Record.App, r.ContentType):
		return id, originOther, nil
	default:
		return id, originThis, r
	}
}

// afterLast decides after reading the app's last message, at sequence 0 if there is none. Nothing
// else of the app is pending, so a later event is ev or another bridge's, and a later message that
// is no event only moves the fence. The fence moves back if its message was removed.
func afterLast(fence uint64, last origin, at uint64) step {
	switch {
	case at > fence && last == originThis:
		return stepDone
	case at > fence && last == originOther:
		return stepEndSession
	default:
		return stepMoveFence
	}
}

// afterOriginal decides after reading the message with the event's id, at a sequence, of an app
// whose previous event or foreign message has the sequence previous.
func afterOriginal(previous uint64, original origin, at uint64) step {
	switch {
	case original == originNone, original == originNoApp, original == originForeign:
		// It was removed, or is no event of the app, under the event's own id: the same state is another
		// event at this place of the history.
		return stepNewID
	case at > previous && original == originThis:
		return stepDone // stored by an earlier try, or by another bridge
	default:
		return stepEndSession
	}
}

// checkEnd compares the end of the stream with what it acknowledged, and with the sequence up to
// which all messages are accounted for.
func checkEnd(stream string, last, acknowledged, accounted uint64) error {
	if err := store.CheckTail(stream, last, max(acknowledged, accounted)); err != nil {
		return err
	}
	if last-accounted > farBehind {
		return &OtherWriterError{}
	}
	return nil
}

// OtherWriterError ends a session that found events of another writer. The next session starts from
// them.
type OtherWriterError struct {
	Found map[subjects.AppID]*store.Message // nil: the next session reads them from the stream
}

func (e *OtherWriterError) Error() string {
	return fmt.Sprintf("another writer appended to the stream (apps: %d)", max(1, len(e.Found)))
}

// endsSession reports whether only another session can go on after an error.
func endsSession(err error) bool {
	return errors.As(err, new(*OtherWriterError)) || errors.As(err, new(*store.AlteredError)) || errors.Is(err, store.ErrLostTail) || errors.Is(err, store.ErrGone) || errors.Is(err, store.ErrClosed)
}
