package config

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/bridge/natsconn"
)

const hidden = "(hidden)"

// showQuoted prints a value as it was written.
func showQuoted(text string) string { return strconv.Quote(text) }

// showURLs prints URLs without user names, passwords and tokens.
func showURLs(text string) string { return strconv.Quote(natsconn.RedactURLs(text)) }

// showPath prints the name of a file that holds a secret, and nothing when the text looks like
// the secret itself.
func showPath(text string) string {
	if strings.ContainsAny(text, "\n\r") || strings.Contains(text, "-----") || looksSecret(text) {
		return hidden
	}
	return strconv.Quote(text)
}

// looksSecret: an nkey seed (base32 that starts with S) or a JWT.
func looksSecret(text string) bool {
	return regexp.MustCompile(`^\s*(S[A-Z2-7]{50,}|eyJ[A-Za-z0-9_.-]+)\s*$`).MatchString(text)
}
