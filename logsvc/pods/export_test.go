package pods

import "time"

// Hasten makes short what tests wait for.
func (src *Source) Hasten() {
	src.timing.silence, src.timing.outage, src.timing.patience = time.Second, 300*time.Millisecond, time.Second
	src.timing.report = time.Second
	src.timing.poll, src.timing.resync = 200*time.Millisecond, 500*time.Millisecond
}
