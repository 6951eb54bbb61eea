package smi

import (
	"strings"
)

// longestLine bounds what is looked at: a matrix of 64 GPUs and as many NICs
// has lines of about a KiB.
const longestLine = 1 << 16

// escapes are terminal control sequences; nvidia-smi underlines the header even
// in a pipe. The second form is what is left where the ESC byte was lost.
var escapes = pattern("\x1b\\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\\[[0-9]{0,2}(?:;[0-9]{1,2})*m")

// clean removes what a terminal would not show.
func clean(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if strings.ContainsAny(line, "\x1b[") {
		line = escapes().ReplaceAllString(line, "")
	}
	return strings.ReplaceAll(line, "\u00a0", " ")
}

// token is a word of a line.
type token struct {
	text   string
	end    int // offset of the byte after it
	column int // where a terminal shows its first character
}

// tokens splits a line at blanks and tabs.
func tokens(line string) []token {
	var found []token
	column, start, startColumn := 0, -1, 0
	for i, c := range line {
		if c != ' ' && c != '\t' {
			if start < 0 {
				start, startColumn = i, column
			}
			column++
			continue
		}
		if start >= 0 {
			found = append(found, token{line[start:i], i, startColumn})
			start = -1
		}
		if c == '\t' {
			column += 8 - column%8
		} else {
			column++
		}
	}
	if start >= 0 {
		found = append(found, token{line[start:], len(line), startColumn})
	}
	return found
}

// leadingLink matches what nvidia-smi prints between two devices. SOC is what
// drivers before 384 called SYS.
var leadingLink = pattern(`^(?:X|SYS|SOC|NODE|PHB|PXB|PIX|NV[0-9]{1,3})`)

// splitLinks takes n links off the words of a row. Where a cell is too wide for
// its column, words run into each other: "NODEPXB" is two links, and "PH0-115"
// a link that the list beside it has cut short. The words that are left are
// those after the n-th link; end is the offset in the line at which it ends.
func splitLinks(words []token, n int) (links []string, rest []token, end int) {
	rest = words
	for len(links) < n && len(rest) > 0 {
		word := rest[0]
		link := leadingLink().FindString(word.text)
		if link == "" && len(word.text) > 2 && strings.HasPrefix(word.text, "PH") && isDigit(word.text[2]) {
			link = "PH"
		}
		if link == "" {
			break
		}
		end = word.end - len(word.text) + len(link)
		left := token{word.text[len(link):], word.end, word.column + len(link)}
		if link == "PH" {
			link = "PHB"
		}
		links = append(links, link)
		rest = rest[1:]
		if left.text != "" {
			rest = append([]token{left}, rest...)
		}
	}
	return links, rest, end
}

func isLink(word string) bool { return word != "" && leadingLink().FindString(word) == word }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
