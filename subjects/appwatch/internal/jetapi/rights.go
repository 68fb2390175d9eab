package jetapi

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// deniedLimit is how often in a row a request is refused before that counts as a missing right: a
// server that is reloaded may refuse for a moment.
const deniedLimit = 3

// inboxRight is the right to receive answers, as a key of Client.denied.
const inboxRight = "the inbox"

// refused is the error of a request that the server refused. Others that it serves in between do not
// count: they need other rights.
func (c *Client) refused(right, subject string, refusal error) error {
	if c.denied[right]++; c.denied[right] >= deniedLimit {
		return fmt.Errorf("%w: %w", ErrDenied, refusal)
	}
	return fmt.Errorf("%s: %w", subject, refusal)
}

// refusal is the server's refusal of a request.
func (c *Client) refusal(subject string, before error) error {
	return c.report(c.prefix+subject, before)
}

// report is the server's report that a subject is not permitted. It makes it to the connection, not to
// a request or a subscription; before is what it had reported before that.
func (c *Client) report(subject string, before error) error {
	last := c.nc.LastError()
	if last == nil || last == before || !errors.Is(last, nats.ErrPermissionViolation) || !strings.Contains(last.Error(), `"`+subject+`"`) { //nolint:errorlint // the same report, not an equal one
		return nil
	}
	return last
}
