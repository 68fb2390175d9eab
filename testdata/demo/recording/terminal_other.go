//go:build !linux

package main

import (
	"context"
	"errors"
	"os/exec"
	"regexp"
)

// session is a command under a pseudo-terminal, which this program opens on Linux alone.
type session struct{}

const (
	columns = 120
	rows    = 30
)

var errNoTerminal = errors.New("a recording needs Linux")

func start(context.Context, *exec.Cmd) (*session, error) { return nil, errNoTerminal }

func (*session) until(context.Context, *regexp.Regexp) ([]line, error) { return nil, errNoTerminal }

func (*session) interrupt() error { return errNoTerminal }
