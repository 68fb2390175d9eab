package config

import (
	"regexp"
	"strconv"

	"github.com/appbridge/appbridge/bridge/natsconn"
)

const hidden = "(hidden)"

// showURLs prints URLs without user names, passwords and tokens.
func showURLs(text string) string { return strconv.Quote(natsconn.RedactURLs(text)) }

// showPath prints the name of a file that holds a secret, and nothing when the text looks like
// the secret itself.
func showPath(text string) string {
	// An nkey seed is base32 that starts with S, a JWT base64 that starts with a brace.
	if regexp.MustCompile(`[\n\r]|-----|^\s*(S[A-Z2-7]{50,}|eyJ[A-Za-z0-9_.-]+)\s*$`).MatchString(text) {
		return hidden
	}
	return strconv.Quote(text)
}
