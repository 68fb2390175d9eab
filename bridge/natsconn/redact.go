package natsconn

import "strings"

// ShowURLs is a list of URLs without users, passwords and tokens.
func ShowURLs(urls []string) string {
	shown := make([]string, len(urls))
	for i, u := range urls {
		shown[i] = RedactURLs(u)
	}
	return strings.Join(shown, ",")
}

// RedactURLs hides everything between the first // and the last @ of a text. It does not
// parse: a password may make the URL invalid and may contain a comma, so of several URLs in
// one text the first hosts are hidden, too.
func RedactURLs(text string) string {
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
