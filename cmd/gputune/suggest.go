package main

import (
	"fmt"
	"strings"
)

// want says which words are accepted: the one that was meant, if that shows, else
// all of them.
func want(given string, accepted []string) string {
	if near := nearest(given, accepted); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	last := len(accepted) - 1
	if last <= 0 {
		return "want " + strings.Join(accepted, "")
	}
	return fmt.Sprintf("want %s or %s", strings.Join(accepted[:last], ", "), accepted[last])
}

// nearest returns the accepted word that given is a mistyping or a beginning of,
// "" if there is none or it could be several.
func nearest(given string, accepted []string) string {
	best, least, tie := "", 0, false
	for _, word := range accepted {
		d := edits(given, word)
		if len(given) > 2 && strings.HasPrefix(word, given) {
			d = 1
		}
		if d > max(1, len(strings.TrimLeft(word, "-"))/3) {
			continue
		}
		switch {
		case best == "" || d < least:
			best, least, tie = word, d, false
		case d == least:
			tie = true
		}
	}
	if tie {
		return ""
	}
	return best
}

// edits counts the letters to put in, leave out, replace or swap with the next to
// make one word of the other.
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
