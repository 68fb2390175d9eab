package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// columns and rows are the size of the terminal.
const (
	columns = 120
	rows    = 30
)

// session is a command under a pseudo-terminal.
type session struct {
	cmd    *exec.Cmd
	master *os.File
	lines  chan line // closed at the end of the output
}

func start(ctx context.Context, cmd *exec.Cmd) (*session, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "TERM=xterm", "COLUMNS="+fmt.Sprint(columns))
	err = cmd.Start()
	if err = errors.Join(err, slave.Close()); err != nil {
		return nil, errors.Join(err, master.Close())
	}
	s := &session{cmd: cmd, master: master, lines: make(chan line)}
	go s.read(ctx)
	return s, nil
}

// read passes the lines on until the terminal is closed, which is an error of the read.
func (s *session) read(ctx context.Context) {
	defer close(s.lines)
	last := time.Now()
	for in := bufio.NewScanner(s.master); in.Scan(); {
		now := time.Now()
		l := line{text: strings.TrimRight(in.Text(), "\r"), after: now.Sub(last)}
		last = now
		select {
		case s.lines <- l:
		case <-ctx.Done():
			return
		}
	}
}

// until returns the lines up to one of a form; without a form, up to the end of the command, which
// has to be a good one.
func (s *session) until(ctx context.Context, form *regexp.Regexp) ([]line, error) {
	var lines []line
	for {
		select {
		case l, more := <-s.lines:
			if !more && form == nil {
				return lines, errors.Join(s.cmd.Wait(), s.master.Close())
			}
			if !more {
				return nil, errors.Join(errors.New("it ended early"), s.cmd.Wait(), s.master.Close())
			}
			if lines = append(lines, l); form != nil && form.MatchString(l.text) {
				return lines, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// interrupt is Ctrl-C. It waits for the end, which is that of the signal for make.
func (s *session) interrupt() error {
	if s.cmd.ProcessState != nil {
		return nil
	}
	if _, err := s.master.Write([]byte{3}); err != nil {
		return err
	}
	for range s.lines { // until it is closed
	}
	err := s.cmd.Wait()
	if status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGINT {
		err = nil
	}
	return errors.Join(err, s.master.Close())
}

// openTerminal opens a pseudo-terminal: what is written to slave is read from master.
func openTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	var unlocked, number int32
	size := [4]uint16{rows, columns}
	for _, call := range []struct {
		request uintptr
		value   unsafe.Pointer
	}{
		{syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked)},
		{syscall.TIOCGPTN, unsafe.Pointer(&number)},
		{syscall.TIOCSWINSZ, unsafe.Pointer(&size)},
	} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), call.request, uintptr(call.value)); errno != 0 {
			return nil, nil, errors.Join(errno, master.Close())
		}
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	return master, slave, nil
}
