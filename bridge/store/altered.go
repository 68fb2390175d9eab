package store

import (
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

// AlteredError reports an event that the stream acknowledged at a sequence at which it has another
// message. Something between the bridge and the stream changes what is sent: a subject transform, a
// mapping of the account, a fault of a server.
type AlteredError struct {
	Sequence uint64
	Subject  string // on which the event was sent
	ID       string // of the event
	Found    *Message
}

func (e *AlteredError) Error() string {
	found := fmt.Sprintf("message %q on %s", e.Found.Header.Get(subjects.CEID), Printable(e.Found.Subject))
	if e.Found.Subject == e.Subject && e.Found.Header.Get(subjects.CEID) == e.ID {
		found = "it with other headers or another body"
	}
	return fmt.Sprintf("event %q on %s was acknowledged at sequence %d, where the stream has %s", e.ID, Printable(e.Subject), e.Sequence, found)
}
