package conf

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"
)

// Agent is about gputuned.
type Agent struct {
	// Interval is how often it looks after what jobs have left and the snapshot.
	Interval Duration `toml:"interval"`
	// Grace is how long a job must have left no trace before it counts as ended.
	Grace Duration `toml:"grace"`
	// Deadline bounds work that calls the driver.
	Deadline Duration `toml:"deadline"`
	// Listen is where metrics are served; empty: nowhere.
	Listen Address `toml:"listen"`
	// Textfile is the file for node_exporter; empty: none.
	Textfile Path `toml:"textfile"`
	// SlurmConf is slurm.conf; empty: what slurmd uses.
	SlurmConf Path `toml:"slurm_conf"`
	// DriftInterval is how often held settings are compared with what is there.
	DriftInterval Period `toml:"drift_interval"`
	// VerifyInterval is how often bound tasks are checked.
	VerifyInterval Period `toml:"verify_interval"`
	// FollowInterval is how often the driver is asked which process uses which GPU
	// while a step with --gpu-numa-bind=follow runs.
	FollowInterval Period `toml:"follow_interval"`
	// Repair says what is mended of a task that has left its place.
	Repair Repairs `toml:"repair"`
}

func defaultAgent() Agent {
	return Agent{
		Interval: Duration(time.Minute), Grace: Duration(30 * time.Second), Deadline: Duration(2 * time.Minute),
		Listen: "127.0.0.1:9946", DriftInterval: Period(5 * time.Minute), VerifyInterval: Period(time.Minute), FollowInterval: Period(time.Second),
		Repair: Repairs{},
	}
}

// Address is a place to listen at, "host:port" with a port that is a number, or
// empty.
type Address string

// UnmarshalTOML implements toml.Unmarshaler.
func (a *Address) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	if isText && text == "" {
		*a = ""
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	number, notNumber := strconv.ParseUint(port, 10, 16)
	if !isText || err != nil || notNumber != nil || number == 0 || host != "" && host != "localhost" && net.ParseIP(host) == nil {
		return wrong(value, `"" or an IP address and a port, such as "127.0.0.1:9946", ":9946" or "[::1]:9946"`)
	}
	*a = Address(text)
	return nil
}

// Period is a time after which something is done again; 0 is never.
type Period time.Duration

// UnmarshalTOML implements toml.Unmarshaler.
func (p *Period) UnmarshalTOML(value any) error {
	if text, isText := value.(string); isText && text == "off" {
		*p = 0
		return nil
	}
	var d Duration
	if d.UnmarshalTOML(value) != nil {
		return wrong(value, fmt.Sprintf(`"off" or a time from %v to %v, such as "1m"`, minDuration, maxDuration))
	}
	*p = Period(d)
	return nil
}

// Repair is something of a bound task that can be mended.
type Repair string

// What can be mended.
const (
	RepairCPUs  Repair = "cpus"  // the affinity of its threads
	RepairPages Repair = "pages" // where its pages are
)

// Repairs are what a site wants to be mended.
type Repairs []Repair

// Has tells whether the site wants it.
func (r Repairs) Has(what Repair) bool { return slices.Contains(r, what) }

// UnmarshalTOML implements toml.Unmarshaler.
func (r *Repairs) UnmarshalTOML(value any) error {
	texts, ok := list(value)
	*r = Repairs{}
	for _, text := range texts {
		ok = ok && (Repair(text) == RepairCPUs || Repair(text) == RepairPages)
		*r = append(*r, Repair(text))
	}
	if !ok {
		return wrong(value, `a list of "cpus" and "pages"`)
	}
	return nil
}
