package logsvc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// A line of a quiet replica is sent at once; those that follow within 50 ms are one batch.
func TestOutboxTiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox(&logRequest{format: subjects.LogFormatText}, nil, &memoryUse{}, testMetrics())
		began := time.Now()
		write := func(replica, text string) {
			t.Helper()
			if err := o.Lines(t.Context(), replica, []Line{{Text: []byte(text)}}, true, ""); err != nil {
				t.Fatal(err)
			}
		}
		sent := func(at time.Duration, replica, text string) {
			t.Helper()
			p, _, err := o.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := time.Since(began); got != at || p.replica != replica || string(p.batch.text) != text {
				t.Errorf("%q of %s after %s, want %q of %s after %s", p.batch.text, p.replica, got, text, replica, at)
			}
		}
		sleep := func(until time.Duration) { <-time.After(until - time.Since(began)) }

		write("a", "one")
		sent(0, "a", "one\n")
		sleep(10 * time.Millisecond)
		write("a", "two")
		write("b", "another replica's")
		sent(10*time.Millisecond, "b", "another replica's\n")
		sleep(40 * time.Millisecond)
		write("a", "three")
		sent(50*time.Millisecond, "a", "two\nthree\n")
		sleep(99 * time.Millisecond)
		write("a", "four")
		sent(100*time.Millisecond, "a", "four\n")
		sleep(time.Second)
		write("a", "five")
		sent(time.Second, "a", "five\n")
	})
}
