//go:build !linux

package logsvc

import "time"

var processStart = time.Now()

// threadTime is the time since the process began, for want of that of a processor.
func threadTime() time.Duration { return time.Since(processStart) }
