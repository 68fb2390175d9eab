//go:build !linux

package match

import "time"

var processStart = time.Now()

// threadTime returns the time since the process began: the CPU time of a thread is not available.
func threadTime() time.Duration { return time.Since(processStart) }
