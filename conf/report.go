package conf

import (
	"fmt"
	"time"
)

// Report is about the reports on jobs.
type Report struct {
	// Enabled is that there are any.
	Enabled Switch `toml:"enabled"`
	// Interval is how often the agent looks at the GPUs of jobs.
	Interval Duration `toml:"interval"`
	// MinTime is how long a job must have run to have a report.
	MinTime Period `toml:"min_time"`
	// MaxAge is after how many days a report is removed.
	MaxAge Count `toml:"max_age_days"`
	// Max is how many are kept, MaxPerUser how many of one user.
	Max        Count `toml:"max_reports"`
	MaxPerUser Count `toml:"max_reports_per_user"`
}

func defaultReport() Report {
	return Report{
		Enabled: true, Interval: Duration(5 * time.Second), MinTime: Period(10 * time.Second),
		MaxAge: 30, Max: 2000, MaxPerUser: 200,
	}
}

// Count is how many there may be, at least one.
type Count uint32

// UnmarshalTOML implements toml.Unmarshaler.
func (c *Count) UnmarshalTOML(value any) error {
	number, isNumber := value.(int64)
	if !isNumber || number < 1 || number > maxNumber {
		return wrong(value, fmt.Sprintf("a whole number from 1 to %d", maxNumber))
	}
	*c = Count(number)
	return nil
}
