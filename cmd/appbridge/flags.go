package main

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// flagText collects what one flag was given, unread: the table judges the
// values of all sources in the same way.
type flagText struct {
	option option
	texts  []string
}

func (f *flagText) String() string { return "" }
func (f *flagText) Type() string   { return f.option.kind }

// Set replaces the text, or adds to a list.
func (f *flagText) Set(text string) error {
	if !f.option.list {
		f.texts = nil
	}
	f.texts = append(f.texts, text)
	return nil
}

// parseFlags reads the arguments of a command. An argument that cannot be
// read is a problem and is left out, so that the next one is found too. What is
// not a flag goes to operands; for a command that takes none (nil) it is a problem.
func parseFlags(options []option, args []string, operands *[]string, found *problems) (set settings, help bool) {
	for {
		fs, texts := newFlagSet(options)
		err := fs.Parse(args)
		switch {
		case errors.Is(err, pflag.ErrHelp):
			return nil, true
		case err != nil:
			args = dropBadArgument(options, args, err, found)
			continue
		}
		stray := fs.Args()
		if operands != nil {
			*operands, stray = stray, nil
		}
		for _, arg := range stray {
			found.add("%q: unexpected argument: flags are written --name value or --name=value, a switch --name or --name=false", redactURLs(arg))
		}
		set = settings{}
		for _, f := range texts {
			if len(f.texts) > 0 {
				set[f.option.name] = setting{text: strings.Join(f.texts, ","), source: f.option.flag()}
			}
		}
		return set, false
	}
}

func newFlagSet(options []option) (*pflag.FlagSet, []*flagText) {
	fs := pflag.NewFlagSet("appbridge", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	texts := make([]*flagText, 0, len(options))
	for _, o := range options {
		f := &flagText{option: o}
		texts = append(texts, f)
		flag := fs.VarPF(f, o.name, o.letter, o.usage)
		if o.kind == "" {
			flag.NoOptDefVal = "true"
		}
	}
	return fs, texts
}

// unknownFlag says why a command does not take a flag.
func unknownFlag(bad string, known []string) string {
	for _, o := range allOptions() {
		if o.flag() == bad {
			return "a flag of another command"
		}
	}
	return "unknown flag" + didYouMean(bad, known)
}

// dropBadArgument reports the argument that made parsing end with err and
// returns the arguments without it and, for an unknown flag, without what
// looks like its value. It always drops at least one.
func dropBadArgument(options []option, args []string, err error, found *problems) []string {
	known := optionNames(options, option.flag, nil)
	unknown, needsValue := &pflag.NotExistError{}, &pflag.ValueRequiredError{}
	bad := ""
	withValue := false
	switch {
	case errors.As(err, &needsValue):
		bad = "--" + needsValue.GetSpecifiedName()
		if needsValue.GetSpecifiedShortnames() != "" {
			bad = "-" + needsValue.GetSpecifiedName()
		}
		for _, o := range options {
			if o.flag() == bad || "-"+o.letter == bad {
				found.add("%s: %s has no value: want %s", o.name, bad, o.want)
			}
		}
		// Only the last argument can lack a value.
		return args[:len(args)-1]
	case errors.As(err, &unknown):
		withValue = true
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			bad, _, _ = strings.Cut("-"+short, "=")
			found.add("%s: unknown flag%s", redactURLs(bad), didYouMean("-"+bad, known))
		} else {
			bad = "--" + unknown.GetSpecifiedName()
			found.add("%s: %s", redactURLs(bad), unknownFlag(bad, known))
		}
	default:
		syntax := &pflag.InvalidSyntaxError{}
		if errors.As(err, &syntax) {
			bad, _, _ = strings.Cut(syntax.GetSpecifiedFlag(), "=")
		}
		found.add("%q: not a flag: flags are written --name value or --name=value", redactURLs(bad))
	}
	for i, arg := range args {
		if name, _, inline := strings.Cut(arg, "="); name == bad {
			end := i + 1
			if withValue && !inline && end < len(args) && !strings.HasPrefix(args[end], "-") {
				end++
			}
			return append(append([]string(nil), args[:i]...), args[end:]...)
		}
	}
	return nil
}
