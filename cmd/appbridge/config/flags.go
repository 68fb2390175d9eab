package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/appbridge/appbridge/bridge/natsconn"
)

// ErrHelp is returned by [Load] when the arguments ask for help.
var ErrHelp = pflag.ErrHelp

// flagText collects the texts of one flag. The table checks the values of all sources in the
// same way.
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

// AddFlags gives cmd the flags of command, so that the shell can complete them and their
// values. [Load] parses them: cobra would report the first wrong flag alone.
func AddFlags(cmd *cobra.Command, command Command) {
	options := command.options(new(Config))
	fs, _ := newFlagSet(options)
	cmd.Flags().AddFlagSet(fs)
	for _, o := range options {
		complete := cobra.NoFileCompletions
		switch words := strings.Split(o.kind, "|"); {
		case o.kind == "file" || o.kind == "folder":
			continue
		case len(words) > 1:
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		}
		if err := cmd.RegisterFlagCompletionFunc(o.name, complete); err != nil {
			panic(err) // the flag was added above
		}
	}
}

// parseFlags reads the arguments of a command. An argument that cannot be read is a problem
// and is removed, so that the next one is found too. Logs and watch take operands.
func parseFlags(command Command, options []option, args []string, found *problems) (set settings, operands []string, help bool) {
	for {
		fs, texts := newFlagSet(options)
		err := fs.Parse(args)
		switch {
		case errors.Is(err, ErrHelp):
			return nil, nil, true
		case err != nil:
			args = dropBadArgument(options, args, err, found)
			continue
		}
		operands = fs.Args()
		if command != Logs && command != Watch {
			for _, arg := range operands {
				found.add("%q: unexpected argument: flags are written --name value or --name=value, a switch --name or --name=false", natsconn.RedactURLs(arg))
			}
		}
		set = settings{}
		for _, f := range texts {
			if len(f.texts) > 0 {
				set[f.option.name] = setting{text: strings.Join(f.texts, ","), source: f.option.flag()}
			}
		}
		return set, operands, false
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

// dropBadArgument reports the argument that made parsing end with err and
// returns the arguments without it and, for an unknown flag, without what
// looks like its value. It always drops at least one.
func dropBadArgument(options []option, args []string, err error, found *problems) []string {
	known := optionsBy(option.flag, options)
	unknown, needsValue := &pflag.NotExistError{}, &pflag.ValueRequiredError{}
	isUnknown := errors.As(err, &unknown)
	bad := ""
	switch {
	case errors.As(err, &needsValue):
		bad = "--" + needsValue.GetSpecifiedName()
		if needsValue.GetSpecifiedShortnames() != "" {
			bad = "-" + needsValue.GetSpecifiedName()
		}
		o := needsValue.GetFlag().Value.(*flagText).option
		found.add("%s: %s has no value: want %s", o.name, bad, o.want)
		// Only the last argument can lack a value.
		return args[:len(args)-1]
	case isUnknown:
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			bad, _, _ = strings.Cut("-"+short, "=")
			found.add("%s: unknown flag%s", natsconn.RedactURLs(bad), didYouMean("-"+bad, maps.Keys(known)))
		} else {
			bad = "--" + unknown.GetSpecifiedName()
			reason := "unknown flag" + didYouMean(bad, maps.Keys(known))
			if _, other := optionsBy(option.flag, allOptions(new(Config)))[bad]; other {
				reason = "a flag of another command"
			}
			found.add("%s: %s", natsconn.RedactURLs(bad), reason)
		}
	default:
		syntax := &pflag.InvalidSyntaxError{}
		if errors.As(err, &syntax) {
			bad, _, _ = strings.Cut(syntax.GetSpecifiedFlag(), "=")
		}
		found.add("%q: not a flag: flags are written --name value or --name=value", natsconn.RedactURLs(bad))
	}
	for i, arg := range args {
		if name, _, inline := strings.Cut(arg, "="); name == bad {
			end := i + 1
			if isUnknown && !inline && end < len(args) && !strings.HasPrefix(args[end], "-") {
				end++
			}
			return slices.Concat(args[:i], args[end:])
		}
	}
	return nil
}

// PrintOptions writes the options of a command by section, for its help text.
func PrintOptions(w io.Writer, command Command) {
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	initial := Default(command)
	title := ""
	for _, o := range command.options(&initial) {
		if o.section != title {
			title = o.section
			printf("\n%s:\n", title)
		}
		printf("  %s\n        %s", o.synopsis(), o.usage)
		switch value := o.text(); {
		case value == "" || o.kind == "":
		case o.quoted:
			printf(" (default %q)", value)
		default:
			printf(" (default %s)", value)
		}
		printf("\n")
	}
}

// didYouMean is ": did you mean x?" for the nearest known name: one that begins with what was
// written, if all others that do begin with that one, else the one with the fewest changes. It is
// empty when none is near.
func didYouMean(written string, known iter.Seq[string]) string {
	names := slices.Sorted(known)
	longer := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, written) })
	if len(longer) > 0 && !slices.ContainsFunc(longer, func(name string) bool { return !strings.HasPrefix(name, longer[0]) }) {
		return ": did you mean " + longer[0] + "?"
	}
	nearest := slices.MinFunc(names, func(a, b string) int { return cmp.Compare(editDistance(written, a), editDistance(written, b)) })
	if editDistance(written, nearest) > max(2, len(written)/3) {
		return ""
	}
	return ": did you mean " + nearest + "?"
}

// editDistance counts the single-byte insertions, deletions, replacements and
// swaps of neighbours between a and b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(replace, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
