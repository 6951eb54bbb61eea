package slurm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ConfigError is a configuration file of Slurm's that cannot be read or has a
// value that cannot. errors.Is(err, fs.ErrNotExist) tells that a file is
// missing.
type ConfigError struct {
	Path string
	Line int // from 1, of the last physical line of the logical one; 0: the whole file
	Err  error
}

func (e *ConfigError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// What a configuration may be, of all its files together: every step reads it.
const (
	maxConfBytes    = 4 << 20 // the largest known slurm.conf have about 1 MiB
	maxConfFiles    = 1000
	maxIncludeDepth = 16
)

// confLine is one logical line: its key=value pairs in order, and where it is.
type confLine struct {
	pairs []confPair
	path  string
	line  int
}

type confPair struct {
	key   string // lower case
	value string
}

// get returns the value of the last pair with that key (given in lower case):
// Slurm, too, takes the last of several.
func (l confLine) get(key string) (string, bool) {
	for i := len(l.pairs) - 1; i >= 0; i-- {
		if l.pairs[i].key == key {
			return l.pairs[i].value, true
		}
	}
	return "", false
}

func (l confLine) fail(format string, arguments ...any) error {
	return &ConfigError{Path: l.path, Line: l.line, Err: fmt.Errorf(format, arguments...)}
}

// confReader collects the logical lines of a configuration file and of those it
// includes. Source of the syntax: Slurm's src/common/parse_config.c.
type confReader struct {
	read    func(path string) ([]byte, error)
	lines   []confLine
	cluster string // ClusterName so far, in lower case
	bytes   int
	files   int
	errs    []error
}

// readConf returns the lines of the file at path with those of its includes in
// place. What could be read is returned beside an error.
func readConf(path string) ([]confLine, error) {
	r := confReader{read: readRegular}
	r.file(path, 0)
	return r.lines, errors.Join(r.errs...)
}

// readRegular reads a file of bounded size. Anything but a regular file could
// block its reader.
func readRegular(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a pipe waits for a writer
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return io.ReadAll(io.LimitReader(file, maxConfBytes+1))
}

func (r *confReader) file(path string, depth int) {
	if r.files > maxConfFiles || r.bytes > maxConfBytes {
		return // which was said
	}
	if r.files++; r.files > maxConfFiles {
		r.fail(path, 0, fmt.Errorf("configuration of more than %d files", maxConfFiles))
		return
	}
	text, err := r.read(path)
	if err != nil {
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err // ConfigError names the path
		}
		r.fail(path, 0, err)
		return
	}
	if r.bytes += len(text); r.bytes > maxConfBytes {
		r.fail(path, 0, fmt.Errorf("configuration of more than %d bytes", maxConfBytes))
		return
	}
	number, continued := 0, false
	var logical strings.Builder // of the line so far
	for physical := range strings.Lines(string(text)) {
		number++
		var part string
		part, continued = stripContinuation(stripComment(strings.TrimRight(physical, "\r\n")))
		logical.WriteString(part)
		if continued {
			continue
		}
		r.line(path, number, stripEscapes(logical.String()), depth)
		logical.Reset()
	}
	if continued {
		r.line(path, number, stripEscapes(logical.String()), depth)
	}
}

func (r *confReader) fail(path string, line int, err error) {
	r.errs = append(r.errs, &ConfigError{Path: path, Line: line, Err: err})
}

func (r *confReader) line(path string, number int, text string, depth int) {
	if name, isInclude := includeName(text); isInclude {
		r.include(path, number, name, depth)
		return
	}
	line := confLine{pairs: parsePairs(text), path: path, line: number}
	if len(line.pairs) == 0 {
		return
	}
	if cluster, found := line.get("clustername"); found {
		r.cluster = strings.ToLower(cluster)
	}
	r.lines = append(r.lines, line)
}

func (r *confReader) include(path string, number int, name string, depth int) {
	if depth >= maxIncludeDepth {
		r.fail(path, number, fmt.Errorf("include %s: more than %d levels deep", name, maxIncludeDepth))
		return
	}
	name = strings.ReplaceAll(name, "%c", r.cluster)
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	before := len(r.errs)
	r.file(name, depth+1)
	for i, err := range r.errs[before:] {
		r.errs[before+i] = &ConfigError{Path: path, Line: number, Err: fmt.Errorf("include: %w", err)}
	}
}

func includeName(text string) (string, bool) {
	fields := strings.Fields(text)
	if len(fields) < 2 || !strings.EqualFold(fields[0], "include") || strings.HasPrefix(fields[1], "=") {
		return "", false
	}
	return fields[1], true
}

// stripComment cuts the line at the first '#' that an even number of
// backslashes, most often none, is in front of.
func stripComment(line string) string {
	backslashes := 0
	for i := range len(line) {
		switch {
		case line[i] == '#' && backslashes%2 == 0:
			return line[:i]
		case line[i] == '\\':
			backslashes++
		default:
			backslashes = 0
		}
	}
	return line
}

// stripContinuation takes away the last backslash of a line that ends in an odd
// number of them, blanks not counted, and says that the next line belongs to it.
func stripContinuation(line string) (string, bool) {
	end := strings.TrimRight(line, " \t\v\f\r")
	backslashes := len(end) - len(strings.TrimRight(end, `\`))
	if backslashes%2 == 0 {
		return line, false
	}
	return end[:len(end)-1], true
}

// stripEscapes replaces a backslash and the character after it by that character.
func stripEscapes(line string) string {
	if !strings.Contains(line, `\`) {
		return line
	}
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			if i++; i == len(line) {
				break
			}
		}
		b.WriteByte(line[i])
	}
	return b.String()
}

// parsePairs finds the key=value pairs of a line. Blanks may be around "=", and
// a value in double quotes may contain them. Words without "=" are passed over:
// Slurm refuses to start with such a file, so they are nobody's setting.
func parsePairs(line string) []confPair {
	var pairs []confPair
	for {
		line = strings.TrimLeft(line, blanks)
		if line == "" {
			return pairs
		}
		pair, rest, found := cutPair(line)
		if found {
			pairs = append(pairs, pair)
		} else if next := strings.IndexAny(line, blanks); next >= 0 {
			rest = line[next:]
		}
		line = rest
	}
}

const blanks = " \t\n\v\f\r"

// cutPair reads one pair at the start of line. The operators "+=", "-=", "*="
// and "/=" are read as "=": none of the keys used here has a meaning for them.
func cutPair(line string) (pair confPair, rest string, found bool) {
	end := strings.IndexFunc(line, func(c rune) bool { return !isKeyRune(c) })
	if end <= 0 {
		return confPair{}, "", false
	}
	key, rest := line[:end], strings.TrimLeft(line[end:], blanks)
	if rest != "" && strings.ContainsRune("-*+/", rune(rest[0])) {
		rest = rest[1:]
	}
	if !strings.HasPrefix(rest, "=") {
		return confPair{}, "", false
	}
	rest = strings.TrimLeft(rest[1:], blanks)
	value, after := cutValue(rest)
	if value == "" && after == rest {
		return confPair{}, "", false // "key=" at the end of the line is no pair
	}
	return confPair{key: strings.ToLower(key), value: value}, after, true
}

func cutValue(text string) (value, rest string) {
	if strings.HasPrefix(text, `"`) {
		if quoted, after, closed := strings.Cut(text[1:], `"`); closed && (after == "" || strings.ContainsRune(blanks, rune(after[0]))) {
			return quoted, after
		}
	}
	if end := strings.IndexAny(text, blanks); end >= 0 {
		return text[:end], text[end:]
	}
	return text, ""
}

func isKeyRune(c rune) bool {
	return c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
