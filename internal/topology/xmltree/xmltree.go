// Package xmltree reads small XML files into a tree whose elements know their
// line, so that what is wrong in them can be named.
package xmltree

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

const (
	maxDepth    = 200     // hwloc nests bridges and objects some twenty deep
	maxElements = 1 << 20 // the largest machines have some ten thousand
)

// Element is one element of a file.
type Element struct {
	Name     string
	Line     int // of its start tag, from 1
	Text     string
	Children []*Element

	attributes []xml.Attr
}

// Attribute returns the value of an attribute, and whether it is there.
func (e *Element) Attribute(name string) (string, bool) {
	for _, a := range e.attributes {
		if a.Name.Local == name {
			return a.Value, true
		}
	}
	return "", false
}

// Get returns the value of an attribute, "" if it is not there.
func (e *Element) Get(name string) string {
	value, _ := e.Attribute(name)
	return value
}

// Errorf returns an error that begins with the element's line and name.
func (e *Element) Errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: <%s>: %w", e.Line, short(e.Name), fmt.Errorf(format, args...))
}

// All calls visit for e and everything below it, in the order of the file,
// until it returns an error.
func (e *Element) All(visit func(*Element) error) error {
	if err := visit(e); err != nil {
		return err
	}
	for _, child := range e.Children {
		if err := child.All(visit); err != nil {
			return err
		}
	}
	return nil
}

// Parse reads a whole file: comments, processing instructions and document
// types are passed over, and anything after the root element that is more than
// those is an error. Errors name the line.
func Parse(text []byte) (*Element, error) {
	decoder := xml.NewDecoder(bytes.NewReader(text))
	var open []*Element
	var root *Element
	for count := 0; ; {
		line, _ := decoder.InputPos()
		found, err := decoder.RawToken()
		if err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, readable(decoder, err)
		}
		switch found := found.(type) {
		case xml.StartElement:
			element := &Element{Name: found.Name.Local, Line: line, attributes: found.Copy().Attr}
			if count++; count > maxElements {
				return nil, element.Errorf("more than %d elements", maxElements)
			}
			if len(open) >= maxDepth {
				return nil, element.Errorf("more than %d elements deep", maxDepth)
			}
			if len(open) > 0 {
				parent := open[len(open)-1]
				parent.Children = append(parent.Children, element)
			} else if root != nil {
				return nil, element.Errorf("a second root beside the <%s> of line %d", short(root.Name), root.Line)
			} else {
				root = element
			}
			open = append(open, element)
		case xml.EndElement:
			if len(open) == 0 || open[len(open)-1].Name != found.Name.Local {
				return nil, fmt.Errorf("line %d: </%s> ends nothing that is open%s", line, short(found.Name.Local), opened(open))
			}
			open = open[:len(open)-1]
		case xml.CharData:
			if text := strings.TrimSpace(string(found)); text != "" {
				if len(open) == 0 {
					return nil, fmt.Errorf("line %d: text outside of the root element", line)
				}
				element := open[len(open)-1]
				element.Text = strings.TrimSpace(element.Text + " " + text)
			}
		}
	}
	if len(open) > 0 {
		line, _ := decoder.InputPos()
		return nil, fmt.Errorf("line %d: the file ends in the middle%s", line, opened(open))
	}
	if root == nil {
		return nil, errors.New("line 1: no element")
	}
	return root, nil
}

func opened(open []*Element) string {
	if len(open) == 0 {
		return ""
	}
	last := open[len(open)-1]
	return fmt.Sprintf(": <%s> of line %d is open", short(last.Name), last.Line)
}

func readable(decoder *xml.Decoder, err error) error {
	var syntax *xml.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("line %d: %s", syntax.Line, short(syntax.Msg))
	}
	line, _ := decoder.InputPos()
	return fmt.Errorf("line %d: %s", line, short(err.Error()))
}

// short makes what a file contains fit for a message on a terminal.
func short(text string) string {
	const longest = 100
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, text[:min(len(text), longest+1)])
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return text
}

// Root returns the name of the first element, "" if the text does not begin as
// an XML file does. It looks at no more than it has to.
func Root(text []byte) string {
	begin := bytes.TrimLeft(text, " \t\r\n")
	if !bytes.HasPrefix(begin, []byte("<")) {
		return ""
	}
	decoder := xml.NewDecoder(bytes.NewReader(text))
	for {
		found, err := decoder.RawToken()
		if err != nil {
			return ""
		}
		switch found := found.(type) {
		case xml.StartElement:
			return found.Name.Local
		case xml.CharData:
			if len(bytes.TrimSpace(found)) > 0 {
				return ""
			}
		}
	}
}
