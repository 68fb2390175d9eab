//go:build linux || darwin

package main

import "syscall"

// freeBytes is what the disk that holds dir has left for this user.
func freeBytes(dir string) (free int64, known bool) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return 0, false
	}
	return int64(disk.Bavail) * int64(disk.Bsize), true //nolint:unconvert // Bsize has another type on darwin
}
