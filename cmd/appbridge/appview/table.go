package appview

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Style is how a table looks.
type Style struct {
	Wide    bool // more columns
	Color   bool
	Columns int       // of the terminal; 0: as many as the text needs
	Now     time.Time // ages are counted from it
}

// column is one column of a table.
type column struct {
	title  string
	least  int  // columns of the terminal that it keeps when there are too few
	wide   bool // in the wide table alone
	number bool // right-aligned
	text   func(a *App, body *appv1.App, now time.Time) string
}

var tableColumns = []column{
	{title: "PROJECT", least: 6, text: func(a *App, _ *appv1.App, _ time.Time) string { return a.ID.Project }},
	{title: "DOMAIN", least: 6, text: func(a *App, _ *appv1.App, _ time.Time) string { return a.ID.Domain }},
	{title: "NAME", least: 10, text: func(a *App, _ *appv1.App, _ time.Time) string { return a.ID.Name }},
	{title: "STATUS", least: 7, text: func(a *App, _ *appv1.App, _ time.Time) string { return a.statusText() }},
	{title: "REPLICAS", least: 3, number: true, text: replicas},
	{title: "AGE", least: 3, number: true, text: func(_ *App, body *appv1.App, now time.Time) string {
		if created := body.GetStatus().GetCreatedAt(); created != nil {
			return Age(now.Sub(created.AsTime()))
		}
		return unknown
	}},
	{title: "CHANGED", least: 3, number: true, text: func(a *App, _ *appv1.App, now time.Time) string {
		if a.Changed().IsZero() {
			return unknown
		}
		return Age(now.Sub(a.Changed()))
	}},
	{title: "GENERATION", least: 3, wide: true, number: true, text: func(a *App, _ *appv1.App, _ time.Time) string {
		if a.Generation == 0 {
			return unknown
		}
		return strconv.FormatUint(a.Generation, 10)
	}},
	{title: "REVISION", least: 8, wide: true, text: func(a *App, _ *appv1.App, _ time.Time) string { return a.Revision }},
	{title: "IMAGE", least: 8, wide: true, text: func(_ *App, body *appv1.App, _ time.Time) string { return image(body) }},
	{title: "URL", least: 8, wide: true, text: func(_ *App, body *appv1.App, _ time.Time) string {
		return body.GetStatus().GetIngress().GetPublicUrl()
	}},
	{title: "MESSAGE", least: 8, wide: true, text: func(a *App, body *appv1.App, _ time.Time) string {
		return oneLine(message(body, a.Status))
	}},
}

func replicas(a *App, body *appv1.App, _ time.Time) string {
	if body.GetStatus() == nil || a.Gone() {
		return unknown
	}
	return strconv.FormatUint(uint64(body.GetStatus().GetCurrentReplicas()), 10)
}

const gap = "  "

// Table is the lines of a table, the first with the titles. It decodes each of the apps.
func Table(apps []*App, style Style) []string {
	var shown []column
	var titles []string
	for _, c := range tableColumns {
		if !c.wide || style.Wide {
			shown, titles = append(shown, c), append(titles, c.title)
		}
	}
	rows := make([][]string, 0, len(apps))
	for _, a := range apps {
		body := decode(a.Body)
		row := make([]string, len(shown))
		for i, c := range shown {
			if row[i] = Safe(c.text(a, body, style.Now)); row[i] == "" {
				row[i] = unknown
			}
		}
		rows = append(rows, row)
	}
	shown, cells, widths := fitted(shown, append([][]string{titles}, rows...), style.Columns)
	titles, rows = cells[0], cells[1:]
	lines := make([]string, 0, len(rows)+1)
	lines = append(lines, style.paint(tableLine(shown, titles, widths, nil), bold))
	for i, row := range rows {
		lines = append(lines, tableLine(shown, row, widths, func(at int, cell string) string {
			if shown[at].title != "STATUS" {
				return cell
			}
			return style.paint(cell, apps[i].statusColor())
		}))
	}
	return lines
}

// tableLine joins the cells of a row. paint, which may be nil, adds colors to a cell that has its
// width.
func tableLine(columns []column, cells []string, widths []int, paint func(at int, cell string) string) string {
	var line strings.Builder
	for i, cell := range cells {
		switch text := cut(cell, widths[i]); {
		case columns[i].number:
			cell = strings.Repeat(" ", widths[i]-Width(text)) + text
		case i == len(cells)-1:
			cell = text
		default:
			cell = padded(text, widths[i])
		}
		if paint != nil {
			cell = paint(i, cell)
		}
		if i > 0 {
			line.WriteString(gap)
		}
		line.WriteString(cell)
	}
	return line.String()
}

// dispensable are the columns that a narrow terminal does without, in this order.
var dispensable = []string{"MESSAGE", "URL", "IMAGE", "REVISION", "GENERATION", "AGE", "CHANGED", "REPLICAS", "DOMAIN", "PROJECT"}

// fitted are the columns for which a terminal has room, their cells and their widths: those of the
// longest cells, and less for the widest columns when there are too few. What does not fit is cut.
func fitted(columns []column, rows [][]string, available int) ([]column, [][]string, []int) {
	widths, least := make([]int, len(columns)), make([]int, len(columns))
	for i, c := range columns {
		for _, row := range rows {
			widths[i] = max(widths[i], Width(row[i]))
		}
		least[i] = min(widths[i], c.least)
	}
	if available <= 0 {
		return columns, rows, widths
	}
	for _, title := range dispensable {
		if tableWidth(least) <= available {
			break
		}
		if at := slices.IndexFunc(columns, func(c column) bool { return c.title == title }); at >= 0 {
			columns, widths, least = without(columns, at), without(widths, at), without(least, at)
			for i := range rows {
				rows[i] = without(rows[i], at)
			}
		}
	}
	shrink(widths, least, available)
	shrink(widths, make([]int, len(widths)), available) // a terminal that is narrower than any table
	return columns, rows, widths
}

// shrink takes from the widest columns what is too much, and leaves each its least.
func shrink(widths, least []int, available int) {
	for tableWidth(widths) > available {
		widest := -1
		for i := range widths {
			if widths[i] > least[i] && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func tableWidth(widths []int) int {
	total := (len(widths) - 1) * len(gap)
	for _, w := range widths {
		total += w
	}
	return total
}

func without[T any](items []T, at int) []T {
	return slices.Delete(slices.Clone(items), at, at+1)
}

// The parameters of SGR sequences.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func statusColor(word string) string {
	switch word {
	case "ACTIVE":
		return green
	case "FAILED":
		return red
	case "STOPPED", Deleted, unknown:
		return faint
	default:
		return yellow
	}
}

func (s Style) paint(text, color string) string {
	if !s.Color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}
