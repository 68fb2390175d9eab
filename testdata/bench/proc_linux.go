package main

import "syscall"

// child has a process end with this one, and keeps a Ctrl-C at the terminal from it.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
