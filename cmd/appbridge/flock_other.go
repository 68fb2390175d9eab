//go:build !unix || solaris || aix

package main

import "os"

// flock does nothing where the standard library has no file locks: there the
// listen address is what keeps a second server away.
func flock(*os.File) error { return nil }
