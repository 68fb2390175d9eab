//go:build !unix

package watch

import "os"

// There are no such signals: the size is read ten times a second, and nothing stops a process.
var resized, continued os.Signal
