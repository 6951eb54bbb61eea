package smi

import (
	"regexp"
	"sync"
)

// pattern compiles an expression when it is first used. The package is part of a
// program that checks an option at each submission, which would pay for all of
// them.
func pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
