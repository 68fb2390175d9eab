package natsconn

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestOutageIsLoggedOncePerReason: three servers fail in ways of their own,
// four tries a second, for two and a half minutes.
func TestOutageIsLoggedOncePerReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		o := &outage{servers: "nats://a:1,nats://b:2", log: zap.New(core)}
		fail := func(tries int) {
			for i := range tries {
				o.because([]error{
					nats.ErrNoServers,
					errors.New("dial tcp 127.0.0.1:1: connect: connection refused"),
					fmt.Errorf("read tcp 127.0.0.1:%d->127.0.0.1:2: i/o timeout", 40000+i),
					fmt.Errorf("read tcp [::1]:%d->[::1]:3: EOF", 40000+i),
				}[i%4])
				<-time.After(250 * time.Millisecond)
			}
		}
		read := func() (got []string) {
			for _, entry := range logs.TakeAll() {
				got = append(got, fmt.Sprintf("%s %s %s %s", entry.Level, entry.Message, entry.ContextMap()["servers"], entry.ContextMap()["error"]))
			}
			return got
		}
		reason := func(text string) string { return "warn waiting for NATS nats://a:1,nats://b:2 " + text }
		first := []string{
			reason("dial tcp 127.0.0.1:1: connect: connection refused"),
			reason("read tcp 127.0.0.1->127.0.0.1:2: i/o timeout"),
			reason("read tcp [::1]->[::1]:3: EOF"),
		}
		fail(4 * 59)
		if diff := cmp.Diff(read(), first); diff != "" {
			t.Errorf("in the first minute, got - want +:\n%s", diff)
		}
		fail(4 * 91)
		if got, want := len(read()), 2; got != want {
			t.Errorf("got %d lines in the next minute and a half, want %d", got, want)
		}
		o.over()
		fail(4)
		if diff := cmp.Diff(read(), first); diff != "" {
			t.Errorf("after a connection, got - want +:\n%s", diff)
		}
		// Reasons that never repeat do not fill the log or the memory.
		for i := range 10 * maxOutageReasons {
			o.because(fmt.Errorf("reason %d", i))
		}
		if got, want := len(read()), maxOutageReasons-len(first); got != want {
			t.Errorf("got %d lines, want %d", got, want)
		}
	})
}
