package natsconn

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const (
	// rightInterval is how often a right to an inbox is tried that the server has taken away.
	// Without it no request has an answer.
	rightInterval = 2 * time.Second
	// otherRights is how often, in units of that, any other is: it may be meant to stay away.
	otherRights = 30
	// rightTimeout bounds one try.
	rightTimeout = 2 * time.Second
	// refusalTime is how long a try waits for the handler of a refusal that the client has read.
	refusalTime = 250 * time.Millisecond
	// roomTries is how many tries in a row have to find room for one more subscription.
	roomTries = 2
)

// deniedSubject finds the subject in the error of a denied subscription. The server adds the number
// of one that it has removed.
var deniedSubject = regexp.MustCompile(`Permissions Violation for Subscription to "([^"]+)"`)

const removedSubscription = "(sid "

// rights are the subjects of subscriptions that the server does not have any more, because a reload
// took the right away, and that the client still counts on. The client does not subscribe again
// before the next connection, also if the right is given back. Its zero value has none. Safe for
// concurrent use.
type rights struct {
	mu     sync.Mutex
	denied map[string]uint64 // by subject: the number of the connection that was denied it
	// limited is how many subscriptions were refused as too many for the connection, since regain
	// reconnected for those last. The server does not name them.
	limited int
}

// exceed notes a subscription that is one too many. It returns whether it is the first one.
func (r *rights) exceed() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited++
	return r.limited == 1
}

func (r *rights) exceeded() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limited
}

// forgetExceeded forgets the subscriptions that were too many: they are about to be sent again.
func (r *rights) forgetExceeded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited = 0
}

// note notes a subscription that a connection was denied. It returns false for one that is known.
func (r *rights) note(err error, inboxes string, connection uint64) (fresh bool) {
	found := deniedSubject.FindStringSubmatch(err.Error())
	if found == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// An inbox with a wildcard lasts as long as the connection. The first time it may be denied at
	// once; any other subject that was never allowed is left alone.
	lasts := isInbox(found[1], inboxes) && strings.HasSuffix(found[1], ".*")
	_, known := r.denied[found[1]]
	if !known && !lasts && !strings.Contains(err.Error(), removedSubscription) {
		return true
	}
	if r.denied == nil {
		r.denied = map[string]uint64{}
	}
	r.denied[found[1]] = connection
	return !known
}

func isInbox(subject, inboxes string) bool { return strings.HasPrefix(subject, inboxes+".") }

// take returns the denied subjects, those of inboxes alone unless all is true.
func (r *rights) take(inboxes string, all bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.denied)), func(s string) bool { return !all && !isInbox(s, inboxes) })
}

// regained forgets a denied subject. It reports whether the client has to connect again for it: on a
// later connection, the client has subscribed.
func (r *rights) regained(subject string, connection uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	denied := r.denied[subject]
	delete(r.denied, subject)
	return denied == connection
}

// regain reconnects once rights are back that the server had taken away, or there is room for the
// subscriptions that were too many, until Close.
func (c *Conn) regain() {
	tick := time.Tick(rightInterval)
	room := 0
	for n := 0; ; n++ {
		select {
		case <-c.done:
			return
		case <-tick:
		}
		if !c.NATS.IsConnected() || c.closing.Load() {
			continue
		}
		if room++; c.rights.exceeded() == 0 || !c.hasRoom() {
			room = 0
		}
		if room >= roomTries {
			room = 0
			c.rights.forgetExceeded() // what is still refused is reported again
			c.log.Warn("the NATS server accepts more subscriptions again; reconnecting to subscribe")
			c.resubscribe()
			continue
		}
		var back []string
		for _, subject := range c.rights.take(inboxes(c.NATS), n%otherRights == 0) {
			if c.allowed(subject) && c.rights.regained(subject, c.NATS.Stats().Reconnects) {
				back = append(back, subject)
			}
		}
		if len(back) == 0 {
			continue
		}
		c.log.Warn("the NATS server allows subscriptions again; reconnecting to subscribe", zap.Strings("subjects", back))
		c.resubscribe()
	}
}

// resubscribe reconnects, which sends all subscriptions again.
func (c *Conn) resubscribe() {
	if err := c.NATS.ForceReconnect(); err != nil && !c.closing.Load() {
		c.log.Warn("cannot reconnect", zap.Error(err))
	}
}

// hasRoom reports whether the server accepts one more subscription.
func (c *Conn) hasRoom() bool {
	before := c.rights.exceeded()
	sub, err := c.NATS.SubscribeSync(c.NATS.NewInbox())
	if err != nil {
		return false
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.NATS.FlushTimeout(rightTimeout); err != nil {
		return false
	}
	// The refusal was read before the answer to this. Its handler may be still to come.
	select {
	case <-time.After(refusalTime):
	case <-c.done:
	}
	return c.rights.exceeded() == before
}

// allowed reports whether the server accepts a subscription.
func (c *Conn) allowed(subject string) bool {
	sub, err := c.NATS.SubscribeSync(subject)
	if err != nil {
		return false
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The refusal comes before the answer to this.
	if err := c.NATS.FlushTimeout(rightTimeout); err != nil {
		return false
	}
	_, err = sub.NextMsg(time.Millisecond)
	return !errors.Is(err, nats.ErrPermissionViolation)
}

// inboxes is how the subjects of a client's inboxes begin.
func inboxes(nc *nats.Conn) string {
	return strings.TrimSuffix(cmp.Or(nc.Opts.InboxPrefix, nats.InboxPrefix), ".")
}
