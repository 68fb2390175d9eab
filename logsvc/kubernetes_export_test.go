package logsvc

import "time"

// Hasten makes short what tests wait for.
func (k *Kubernetes) Hasten() {
	k.pace.silence, k.pace.outage, k.pace.patience = time.Second, 300*time.Millisecond, time.Second
	k.pace.report = time.Second
	k.pace.poll, k.pace.survey = 200*time.Millisecond, 500*time.Millisecond
}
