package main

import (
	"bytes"
	"fmt"
	"html"
	"regexp"
	"strings"
	"time"
)

// Sizes of the picture, in pixels.
const (
	charWidth  = 7.22
	lineHeight = 17
	margin     = 12
	fontSize   = 12
)

// A line is shown for at least and at most so long before the next one, and the last screen for
// restPause.
const (
	leastPause = 60 * time.Millisecond
	mostPause  = 700 * time.Millisecond
	restPause  = 6 * time.Second
)

var sgr = regexp.MustCompile(`\x1b\[([0-9;]*)m`)

// otherSequences are those that place the cursor or set a title: a picture has no use for them.
var otherSequences = regexp.MustCompile(`\x1b(\[[0-9;?]*[A-Za-ln-z]|\][^\x07]*\x07|[=>])`)

// classes are the styles of SGR parameters.
var classes = map[string]string{"1": "b", "2": "f", "31": "r", "32": "g", "33": "y", "34": "u", "35": "m", "36": "c"}

// span is a part of a line in one style.
type span struct{ class, text string }

// spans splits a line at its colors.
func spans(text string) []span {
	text = strings.ReplaceAll(otherSequences.ReplaceAllString(text, ""), "\t", "    ")
	var parts []span
	class := ""
	add := func(text string) {
		if text != "" {
			parts = append(parts, span{class, text})
		}
	}
	for {
		at := sgr.FindStringSubmatchIndex(text)
		if at == nil {
			add(text)
			return parts
		}
		add(text[:at[0]])
		class = ""
		for parameter := range strings.SplitSeq(text[at[2]:at[3]], ";") {
			if c, known := classes[parameter]; known {
				class = c
			}
		}
		text = text[at[1]:]
	}
}

// wrapped are the spans of a line, row by row of the terminal.
func wrapped(text string) [][]span {
	result := [][]span{nil}
	used := 0
	for _, s := range spans(text) {
		for _, r := range s.text {
			if used == columns {
				result, used = append(result, nil), 0
			}
			row := &result[len(result)-1]
			if n := len(*row); n > 0 && (*row)[n-1].class == s.class && used > 0 {
				(*row)[n-1].text += string(r)
			} else {
				*row = append(*row, span{s.class, string(r)})
			}
			used++
		}
	}
	return result
}

// plain is the session as text.
func plain(lines []line) []byte {
	var out bytes.Buffer
	for _, l := range lines {
		var text strings.Builder
		for _, s := range spans(l.text) {
			text.WriteString(s.text)
		}
		fmt.Fprintln(&out, strings.TrimRight(text.String(), " "))
	}
	return out.Bytes()
}

// render is the session as an SVG picture of text alone, which scrolls as the terminal did.
func render(title string, lines []line) []byte {
	var body bytes.Buffer
	var scrolls []time.Duration // when each row arrives
	var now time.Duration
	n := 0
	for _, l := range lines {
		now += min(max(l.after, leastPause), mostPause)
		for _, row := range wrapped(l.text) {
			scrolls = append(scrolls, now)
			n++
			if len(row) == 0 {
				continue
			}
			fmt.Fprintf(&body, "<text y=\"%d\">", n*lineHeight)
			for _, s := range row {
				if s.class == "" {
					body.WriteString(html.EscapeString(s.text))
				} else {
					fmt.Fprintf(&body, "<tspan class=\"%s\">%s</tspan>", s.class, html.EscapeString(s.text))
				}
			}
			body.WriteString("</text>\n")
		}
	}
	width, height := columns*charWidth+2*margin, rows*lineHeight+2*margin
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d" role="img">
<title>%s</title>
<style>
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d6dbe5;white-space:pre}
.b{font-weight:bold;fill:#fff}.f{fill:#8a93a6}.r{fill:#f07178}.g{fill:#8fd17a}.y{fill:#e6c266}.u{fill:#7aa8f0}.m{fill:#c792ea}.c{fill:#6fc3df}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#1b1f2a"/>
<clipPath id="screen"><rect width="%.0f" height="%d"/></clipPath>
<g transform="translate(%d %d)" clip-path="url(#screen)"><g xml:space="preserve">
`, width, height, width, height, html.EscapeString(title), fontSize, width-2*margin, rows*lineHeight+4, margin, margin-3)
	out.WriteString(scroll(scrolls))
	out.Write(body.Bytes())
	out.WriteString("</g></g>\n</svg>\n")
	return out.Bytes()
}

// scroll moves the rows up as they arrive, once the screen is full, and begins again after a pause.
func scroll(arrivals []time.Duration) string {
	if len(arrivals) <= rows {
		return ""
	}
	begin := arrivals[rows-1]
	total := arrivals[len(arrivals)-1] - begin + restPause
	values, times := []string{"0 0"}, []string{"0"}
	for i := rows; i < len(arrivals); i++ {
		values = append(values, fmt.Sprintf("0 %d", -(i-rows+1)*lineHeight))
		times = append(times, fmt.Sprintf("%.4f", float64(arrivals[i]-begin)/float64(total)))
	}
	return fmt.Sprintf("<animateTransform attributeName=\"transform\" type=\"translate\" calcMode=\"discrete\" dur=\"%.1fs\" repeatCount=\"indefinite\" values=\"%s\" keyTimes=\"%s\"/>\n",
		total.Seconds(), strings.Join(values, ";"), strings.Join(times, ";"))
}
