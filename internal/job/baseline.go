package job

import (
	"gputune/conf"
	"gputune/internal/setting"
)

// baseline returns what a site wants to be put back for a setting of a GPU, by
// the last part of its key; "" is what was found.
func baseline(b conf.Baseline, name string) string {
	switch name {
	case setting.SMClocksName:
		return string(b.SMClocks)
	case setting.MemoryClocksName:
		return string(b.MemoryClocks)
	case setting.PowerLimitName:
		return string(b.Power)
	case setting.PersistenceName:
		return string(b.Persistence)
	case setting.ComputeModeName:
		return string(b.ComputeMode)
	}
	return ""
}
