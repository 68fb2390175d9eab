package subjects

import "fmt"

// MaxKeyBytes bounds the key of an app id. A NATS server closes the connection of a client whose
// protocol line, subject included, is over 4096 bytes (its default max_control_line): one app with
// an absurdly long name would take it down for all. The bound leaves room for the prefix
// and for the subjects of the JetStream API, which repeat stream, consumer and filter.
const MaxKeyBytes = 2048

// AppID names an app. The parts may hold any bytes, but not be empty. It is comparable; the zero
// value is not valid. The organization is not part of the identity: it is in the message.
type AppID struct {
	Project string
	Domain  string
	Name    string
}

// Validate reports whether the id can stand in a subject and a key. The error wraps ErrEmptyPart
// and names every empty part, or wraps ErrTooLong when the escaped key would be over MaxKeyBytes.
func (id AppID) Validate() error {
	if err := checkParts(id.parts()...); err != nil {
		return fmt.Errorf("app id %s: %w", quote(id.String()), err)
	}
	return nil
}

// String is project/domain/name as written, without any escaping: for people
// and logs, not for the wire.
func (id AppID) String() string {
	return id.Project + "/" + id.Domain + "/" + id.Name
}

// Key is "<project>.<domain>.<app>" with every part escaped: the key in the bucket, the ce-subject,
// and the identity tokens of every subject. No two ids share a key. The error is that of Validate.
func (id AppID) Key() (string, error) {
	key, err := joinTokens(id.parts()...)
	if err != nil {
		return "", fmt.Errorf("app id %s: %w", quote(id.String()), err)
	}
	return key, nil
}

// ParseKey is the inverse of Key. It accepts what Key writes and nothing else;
// the error wraps ErrMalformed.
func ParseKey(key string) (AppID, error) {
	parts, err := splitTokens(key, 3)
	if err != nil {
		return AppID{}, fmt.Errorf("parse key %s: %w", quote(key), err)
	}
	return AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}, nil
}

func (id AppID) parts() []part {
	return []part{{"project", id.Project}, {"domain", id.Domain}, {"name", id.Name}}
}
