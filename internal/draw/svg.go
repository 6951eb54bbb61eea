package draw

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// WriteSVG writes the picture as a whole SVG 1.1 document that needs nothing else.
// Lines of text are told their width, so that a reader's font does not change it.
func (d Drawing) WriteSVG(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img"`+
		` font-family="'DejaVu Sans Mono',Menlo,Consolas,'Liberation Mono',monospace">`+"\n", d.Width, d.Height)
	fmt.Fprintf(b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"%s\"/>\n", escape(d.Title), paper)
	for _, s := range d.Shapes {
		s.write(b)
	}
	fmt.Fprintln(b, "</svg>")
	return b.Flush()
}

func (s Shape) write(w io.Writer) {
	var b strings.Builder
	tag, content := "rect", ""
	if s.Title != "" {
		content = "<title>" + escape(s.Title) + "</title>"
	}
	switch s.Kind {
	case Text:
		tag = "text"
		content += escape(s.Text)
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="%d" textLength="%d" lengthAdjust="spacingAndGlyphs"`,
			s.X, s.Y+s.Size, s.Size, s.W)
		if s.Bold {
			b.WriteString(` font-weight="bold"`)
		}
	case Line:
		tag = "line"
		fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d"`, s.X, s.Y, s.X+s.W, s.Y+s.H)
	default:
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d"`, s.X, s.Y, s.W, s.H)
		if s.Kind == Box {
			b.WriteString(` rx="2"`)
		}
	}
	switch {
	case s.Fill != "":
		fmt.Fprintf(&b, ` fill="%s"`, s.Fill)
	case s.Kind != Line:
		b.WriteString(` fill="none"`)
	}
	if s.Stroke != "" {
		fmt.Fprintf(&b, ` stroke="%s"`, s.Stroke)
	}
	if s.Dashed {
		b.WriteString(` stroke-dasharray="4 3"`)
	}
	if content == "" {
		fmt.Fprintf(w, "%s/>\n", b.String())
		return
	}
	fmt.Fprintf(w, "%s>%s</%s>\n", b.String(), content, tag)
}

func escape(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		panic(err) // a strings.Builder takes everything
	}
	return b.String()
}
