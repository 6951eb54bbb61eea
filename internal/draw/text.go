package draw

import (
	"strings"
	"unicode/utf8"
)

// The sizes of text.
const (
	small  = 10
	normal = 12
	large  = 16
)

// textWidth is the room that a line takes in a monospaced font, whose letters are
// 0.6 of its height wide or a little more.
func textWidth(text string, size int) int { return (utf8.RuneCountInString(text)*size*61 + 99) / 100 }

// lineHeight is the room from one line to the next.
func lineHeight(size int) int { return size*5/4 + 1 }

func line(text string, size int) Shape {
	return Shape{Kind: Text, W: textWidth(text, size), H: size * 5 / 4, Text: text, Size: size, Fill: ink}
}

// paragraph breaks text after commas and at blanks into lines that fit the width,
// at most so many: the last one ends in "…" where there is more.
func paragraph(text string, size, width, most int, style Shape) group {
	var g group
	letters := max(4, width*100/(size*61))
	for i, words := range wrap(text, letters, most) {
		s := line(words, size)
		s.Y = i * lineHeight(size)
		s.Bold = style.Bold
		if style.Fill != "" {
			s.Fill = style.Fill
		}
		if i == 0 {
			s.Title = style.Title
		}
		g.add(s)
	}
	return g
}

func wrap(text string, letters, most int) []string {
	var lines []string
	for text != "" {
		if utf8.RuneCountInString(text) <= letters {
			return append(lines, text)
		}
		runes := []rune(text)
		cut := letters
		for i := letters; i > 0; i-- {
			if runes[i] == ' ' || runes[i-1] == ',' {
				cut = i
				break
			}
		}
		if len(lines) == most-1 {
			cut = min(cut, letters-1)
			return append(lines, strings.TrimRight(string(runes[:cut]), " ")+"…")
		}
		lines = append(lines, strings.TrimRight(string(runes[:cut]), " "))
		text = strings.TrimLeft(string(runes[cut:]), " ")
	}
	return lines
}
