package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/subjects"
)

// openTerminal opens a pseudo-terminal: what is written to slave is read from master.
func openTerminal(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	var unlocked, number int32
	for request, value := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlocked, syscall.TIOCGPTN: &number} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Fatal(errno)
		}
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// TestLogsOnATerminal: the command itself, with a terminal for its output.
func TestLogsOnATerminal(t *testing.T) {
	const text = "\x1b]0;root@prod\x07\x1b[32mgreen\x1b[0m\rgone"
	for args, want := range map[string]string{
		"":             `\x1b]0;root@prod\x07` + "\x1b[32mgreen\x1b[0m" + `\x0dgone` + "\r\n",
		"--raw-output": text + "\r\n",
	} {
		t.Run(args, func(t *testing.T) {
			isolate(t)
			s := startNATS(t, server.Options{})
			serveLogs(t, s, func(v *logService) { v.lines(podA, text+"\n"); v.end(subjects.LogEndEOF) })
			master, slave := openTerminal(t)
			if code := run(t.Context(), append([]string{"logs", "shop/production/search", "--nats-url", s.ClientURL()}, strings.Fields(args)...), slave, &output{}); code != exitOK {
				t.Errorf("got exit code %d", code)
			}
			buf := make([]byte, 4096)
			n, err := master.Read(buf)
			if err != nil || string(buf[:n]) != want {
				t.Errorf("got %q, %v; want %q", buf[:n], err, want)
			}
		})
	}
}
