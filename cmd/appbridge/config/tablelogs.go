package config

import (
	"regexp"
	"time"

	"github.com/appbridge/appbridge/logsvc/client"
)

// When is a word that decides whether output is decorated.
type When string

// The values of [When]. Auto: on a terminal.
const (
	WhenAuto   When = "auto"
	WhenAlways When = "always"
	WhenNever  When = "never"
)

// SinceStart is [Config.Since] for all lines since the container started.
const SinceStart = time.Duration(-1)

const allLines = -1

// or is a codec that takes a word for one more value.
func or[T comparable](word string, value T, other codec[T]) codec[T] {
	return codec[T]{
		form: form{kind: other.kind, want: word + ", or " + other.want},
		parse: func(s string) (T, error) {
			if s == word {
				return value, nil
			}
			return other.parse(s)
		},
		format: func(v T) string {
			if v == value {
				return word
			}
			return other.format(v)
		},
	}
}

// maxTail is beyond any log, and a number that every machine has.
const maxTail = 1_000_000_000

func logRequestOptions(c *Config) []option {
	return []option{
		short("f", define("follow", "go on with what will be written", &c.Follow, toggle())),
		define("tail", "lines of each replica to begin with; all with since or since-time, unless it is given as well", &c.Tail, or("all", allLines, number(0, maxTail))),
		define("replica", "name of one replica (pod); none: all of them", &c.Replica,
			text("pod", "the name of a pod", checkOptional(valid(isObjectName)))),
		short("c", define("container", "name of the container; none: that of the app", &c.Container,
			text("name", "the name of a container", checkOptional(valid(isObjectName))))),
		short("p", define("previous", "the container as it was before its last restart", &c.Previous, toggle())),
		define("timestamps", "put the time before each line", &c.Timestamps, toggle()),
		define("include", "only lines that match", &c.Include, expression()),
		define("exclude", "no lines that match", &c.Exclude, expression()),
		define("max-duration", "end after this time, 0 for never", &c.MaxDuration, duration(time.Millisecond, true)),
		define("window", "messages that the service sends ahead; 0: without acknowledgements at a slower pace, which a service in another NATS account needs", &c.Window, number(0, client.MaxWindow)),
	}
}

// pastOptions are where logs and events begin.
func pastOptions(c *Config) []option {
	return []option{
		define("since", "leave out what is older, 0 for nothing; start, of logs: all since the container started", &c.Since, or("start", SinceStart, duration(time.Millisecond, true))),
		define("since-time", "leave out what was written before", &c.SinceTime, pointInTime()),
	}
}

func colorOption(c *Config) option {
	return define("color", "colors; auto: on a terminal, unless NO_COLOR is set", &c.Color, word(WhenAuto, WhenAlways, WhenNever))
}

func logOutputOptions(c *Config) []option {
	return []option{
		define("replica-prefix", "the replica before each line; auto: as soon as there has been more than one", &c.ReplicaPrefix, word(WhenAuto, WhenAlways, WhenNever)),
		define("raw-output", "on a terminal, too, print the bytes of the log as they are; otherwise only colors pass, and other control characters are shown escaped", &c.RawOutput, toggle()),
	}
}

// expression is a regular expression, or empty for none.
func expression() codec[string] {
	return text("regexp", "a regular expression (RE2)", func(s string) error {
		_, err := regexp.Compile(s)
		return err
	})
}
