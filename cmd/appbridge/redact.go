package main

import (
	"regexp"
	"strconv"
	"strings"
)

const hidden = "(hidden)"

// showQuoted prints a value as it was written.
func showQuoted(text string) string { return strconv.Quote(text) }

// showURLs prints URLs without user names, passwords and tokens.
func showURLs(text string) string { return strconv.Quote(redactURLs(text)) }

// showPath prints the name of a file that holds a secret, and nothing at all
// when it looks as if the secret itself had been given in its place.
func showPath(text string) string {
	if strings.ContainsAny(text, "\n\r") || strings.Contains(text, "-----") || looksSecret(text) {
		return hidden
	}
	return strconv.Quote(text)
}

// redactURLs hides everything between the first // and the last @. It does not
// parse: what breaks a URL may well be its password, and a password may hold
// a comma, so of several URLs written in one text the first hosts go too.
func redactURLs(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return text
	}
	start := 0
	if i := strings.Index(text[:at], "//"); i >= 0 {
		start = i + len("//")
	}
	return text[:start] + "xxxxx" + text[at:]
}

// looksSecret: an nkey seed (base32 that starts with S) or a JWT.
func looksSecret(text string) bool {
	return regexp.MustCompile(`^\s*(S[A-Z2-7]{50,}|eyJ[A-Za-z0-9_.-]+)\s*$`).MatchString(text)
}
