package bridge

import (
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// ConnectOptions are the options a connection needs that a Bridge publishes on.
func ConnectOptions(name string, log *zap.Logger) []nats.Option {
	// Requests faster than they are answered would make one error for each that is dropped.
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
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			reported.Do(func() { log.Warn("NATS reports an error", zap.String("subject", subject), zap.Error(err)) })
		}),
	}
}
