package setting

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

const thpFolder = "/sys/kernel/mm/transparent_hugepage"

func init() {
	for _, name := range []struct{ name, doc string }{
		{"enabled", "where the kernel uses transparent hugepages: always, madvise or never"},
		{"defrag", "whether a page fault waits for a transparent hugepage: always, defer, defer+madvise, madvise or never"},
	} {
		register(kind{
			Kind: Kind{Pattern: "thp/" + name.name, Doc: name.doc},
			open: func(env *Environment, key string, _ []string) (Setting, error) {
				return choice{kernelFile{env: env, key: key, of: "transparent hugepages: " + name.name, path: thpFolder + "/" + name.name}}, nil
			},
		})
	}
}

// choice is one of the words that its file lists, the present one in brackets:
// "always [madvise] never".
//
// Documentation/admin-guide/mm/transhuge.rst. A word is the value, and the file
// is the same again when the word is.
type choice struct{ kernelFile }

// Traits implements Setting.
func (choice) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: UntilReboot} }

// words returns the words that can be chosen and the present one.
func (s choice) words() (words []string, present string, err error) {
	line, err := s.read()
	if err != nil {
		return nil, "", err
	}
	for word := range strings.FieldsSeq(line) {
		if inner, found := strings.CutPrefix(word, "["); found {
			word = strings.TrimSuffix(inner, "]")
			present = word
		}
		words = append(words, word)
	}
	if present == "" {
		return nil, "", fmt.Errorf("%s: %s: %q has no word in brackets", s.of, s.path, shown(line))
	}
	return words, present, nil
}

// Check implements Setting.
func (s choice) Check(_ context.Context, value string) (string, error) {
	words, _, err := s.words()
	if err != nil {
		return "", err
	}
	if !slices.Contains(words, value) {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: "supported " + strings.Join(words, ", ")}
	}
	return value, nil
}

// Read implements Setting.
func (s choice) Read(context.Context) (string, error) {
	_, present, err := s.words()
	return present, err
}

// Write implements Setting.
func (s choice) Write(ctx context.Context, value string) error {
	if err := s.write(value); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
