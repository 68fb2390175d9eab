package pods

import "time"

// Hasten makes short what tests wait for, but not so short that a busy machine takes longer.
func (src *Source) Hasten() {
	src.timing.unanswered, src.timing.silence, src.timing.patience = 10*time.Second, 15*time.Second, 3*time.Second
	src.timing.poll, src.timing.resync, src.timing.unseen = 200*time.Millisecond, 2*time.Second, 10*time.Second
}
