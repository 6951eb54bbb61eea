package conf

import (
	"slices"

	"gputune/internal/option"
)

// Baseline is what a site keeps its GPUs at between jobs. A job's changes are
// put back to it instead of to what was found; empty values are as found, and
// "unlocked" for clocks, which nothing can read.
type Baseline struct {
	SMClocks     BaselineClock       `toml:"clocks"`
	MemoryClocks BaselineClock       `toml:"memory_clocks"`
	Power        BaselinePower       `toml:"power"`
	Persistence  BaselinePersistence `toml:"persistence"`
	ComputeMode  BaselineMode        `toml:"compute_mode"`
}

// unlocked is setting.Unlocked. This package is part of the plugin's core, which
// has no use for settings.
const unlocked = "unlocked"

// BaselineClock is "", "unlocked", a clock or a range in MHz.
type BaselineClock string

// UnmarshalTOML implements toml.Unmarshaler.
func (b *BaselineClock) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	clocks, err := option.ParseClocks(text)
	isRange := err == nil && clocks.SM.Word == "" && clocks.Memory.IsZero()
	if !isText || text != "" && text != unlocked && !isRange {
		return wrong(value, `"", "unlocked", MHZ or MIN-MAX`)
	}
	*b = BaselineClock(text)
	return nil
}

// BaselinePower is "", watts, "max" or "default", the card's own.
type BaselinePower string

// UnmarshalTOML implements toml.Unmarshaler.
func (b *BaselinePower) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	if _, err := option.ParsePower(text); !isText || text != "" && err != nil {
		return wrong(value, `"", WATTS, "max" or "default"`)
	}
	*b = BaselinePower(text)
	return nil
}

// BaselinePersistence is "", "on" or "off".
type BaselinePersistence string

// UnmarshalTOML implements toml.Unmarshaler.
func (b *BaselinePersistence) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	if !isText || !slices.Contains([]string{"", "on", "off"}, text) {
		return wrong(value, `"", "on" or "off"`)
	}
	*b = BaselinePersistence(text)
	return nil
}

// BaselineMode is "" or a compute mode.
type BaselineMode string

// UnmarshalTOML implements toml.Unmarshaler.
func (b *BaselineMode) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	if _, err := option.ParseComputeMode(text); !isText || text != "" && err != nil {
		return wrong(value, `"", "shared", "exclusive" or "prohibited"`)
	}
	*b = BaselineMode(text)
	return nil
}
