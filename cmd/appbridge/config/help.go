package config

import (
	"fmt"
	"io"
)

// PrintOptions writes the options of a command by section, for its help text.
func PrintOptions(w io.Writer, command Command) {
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	initial := Default(command)
	title := ""
	for _, o := range command.options() {
		if o.section != title {
			title = o.section
			printf("\n%s:\n", title)
		}
		flag := o.synopsis()
		value := o.text(&initial)
		switch {
		case value == "" || o.kind == "":
			printf("  %s\n        %s\n", flag, o.usage)
		case o.quoted:
			printf("  %s\n        %s (default %q)\n", flag, o.usage, value)
		default:
			printf("  %s\n        %s (default %s)\n", flag, o.usage, value)
		}
	}
}
