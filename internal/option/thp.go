package option

import "fmt"

// THPName is the name of the option that THP is the value of.
const THPName = "thp"

// THPForms lists the accepted values, for messages.
const THPForms = "always, madvise or never"

// THP is the value of --thp: where the kernel uses transparent hugepages.
type THP string

// The values of --thp, the kernel's words.
const (
	THPAlways  THP = "always"
	THPMadvise THP = "madvise" // where a program asks for them
	THPNever   THP = "never"
)

// ParseTHP reads the value of --thp.
func ParseTHP(value string) (THP, error) {
	switch thp := THP(value); thp {
	case THPAlways, THPMadvise, THPNever:
		return thp, nil
	}
	return "", fmt.Errorf("--%s: %s: want %s", THPName, Shown(value), THPForms)
}
