package natsconn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// Options are the options of every connection of appbridge: it reconnects for ever, twice a
// second, detects a dead server within 30 seconds and buffers nothing while disconnected.
func Options(name string, log *zap.Logger) []nats.Option {
	// Without a limit, requests that exceed a subscription's bounds log one error each.
	reported := &rate.Sometimes{First: 10, Interval: time.Second}
	return []nats.Option{
		nats.Name(name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectJitter(200*time.Millisecond, 500*time.Millisecond),
		// A publish that timed out must not go out later from a buffer.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(3),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("NATS connection lost", zap.Error(err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("NATS connected again", zap.String("server", nc.ConnectedUrlRedacted()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrDrainTimeout) {
				return // the end of a connection to a server that hangs
			}
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			reported.Do(func() { log.Warn("NATS reports an error", zap.String("subject", subject), zap.Error(err)) })
		}),
	}
}

// ShowURLs is a list of URLs without users, passwords and tokens.
func ShowURLs(urls []string) string {
	shown := make([]string, len(urls))
	for i, u := range urls {
		shown[i] = RedactURLs(u)
	}
	return strings.Join(shown, ",")
}

// RedactURLs hides everything between the first // and the last @ of a text. It does not
// parse: a password may make the URL invalid and may contain a comma, so of several URLs in
// one text the first hosts are hidden, too.
func RedactURLs(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return text
	}
	start := 0
	if i := strings.Index(text[:at], "//"); i >= 0 {
		start = i + len("//")
	}
	return text[:start] + "xxxxx" + text[at:]
}

// Explain adds to an error the permission that the server denied last, if the request ran out of
// time: the client does not connect the two, and a denied request has no other answer. before is the
// last error of the connection when the request began: what was denied before explains nothing.
func Explain(nc *nats.Conn, before, err error) error {
	last := nc.LastError()
	if err != nil && last != before && errors.Is(last, nats.ErrPermissionViolation) && //nolint:errorlint // each denial is an error of its own
		(errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)) {
		return fmt.Errorf("%w (%w)", err, last)
	}
	return err
}
