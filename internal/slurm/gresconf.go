package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// Gres is what gres.conf says, for all nodes. The file may be missing: slurm.conf
// then says all there is.
type Gres struct {
	AutoDetect string       // of the line without a node, in lower case, "" none
	Records    []GresRecord // lines with a Name or a NodeName, in order

	// Declared is what slurm.conf says of the node's GPUs (Conf.DeclaredGPUs):
	// Slurm takes devices for those alone and in the order of their types. Nil
	// is unknown: everything that gres.conf lists counts. ReadGres leaves it nil.
	Declared []DeclaredGPU
}

// GresRecord is one line of gres.conf.
type GresRecord struct {
	NodeName   string // hostlist expression, "" all nodes
	Name       string // "gpu", "mps", …; "" for a line that sets AutoDetect alone
	Type       string
	AutoDetect string   // of this line's nodes, in lower case, "" not set
	Files      []string // File or MultipleFiles, expanded
	Multiple   bool     // MultipleFiles: all of Files are one device
	Count      int      // Count, else the number of devices that Files says, else 1
}

// ReadGres reads gres.conf(5). Keys it does not know are passed over, and records
// that Slurm would refuse to start with are left out. What could be read is
// returned beside an error, a *ConfigError or several joined.
func ReadGres(path string) (Gres, error) {
	return parseGres(readConf(path))
}

// parseGres takes the result of readConf.
func parseGres(lines []confLine, err error) (Gres, error) {
	errs := []error{err}
	var gres Gres
	for _, line := range lines {
		record, err := parseGresRecord(line)
		switch {
		case err != nil:
			errs = append(errs, err)
		case record.Name == "" && record.NodeName == "":
			if record.AutoDetect != "" {
				gres.AutoDetect = record.AutoDetect
			}
		default:
			gres.Records = append(gres.Records, record)
		}
	}
	return gres, errors.Join(errs...)
}

func parseGresRecord(line confLine) (GresRecord, error) {
	record := GresRecord{Count: -1}
	files, multiple := "", ""
	for _, pair := range line.pairs {
		switch pair.key {
		case "nodename":
			record.NodeName = pair.value
		case "name":
			record.Name = pair.value
		case "type":
			record.Type = pair.value
		case "autodetect":
			record.AutoDetect = strings.ToLower(pair.value)
		case "file", "files":
			files = pair.value
		case "multiplefiles":
			multiple = pair.value
		case "count":
			count, isCount := parseCount(pair.value)
			if !isCount {
				return record, line.fail("Count=%s: want a number, with K, M, G, T or P behind it if need be", pair.value)
			}
			record.Count = count
		}
	}
	if record.NodeName != "" {
		if _, err := parseHostlist(record.NodeName); err != nil {
			return record, line.fail("NodeName: %w", err)
		}
	}
	if err := record.setFiles(files, multiple); err != nil {
		return record, line.fail("%w", err)
	}
	return record, nil
}

func (r *GresRecord) setFiles(files, multiple string) error {
	if files != "" && multiple != "" {
		return errors.New("both File and MultipleFiles on one line: want one of them")
	}
	var err error
	if r.Files, err = Expand(files + multiple); err != nil {
		return fmt.Errorf("device files: %w", err)
	}
	r.Multiple = multiple != "" && len(r.Files) > 0
	devices := len(r.Files)
	if r.Multiple {
		devices = min(devices, 1)
	}
	switch {
	case r.Count < 0:
		r.Count = max(devices, 1)
	case strings.EqualFold(r.Name, "gpu") && devices > 0 && r.Count != devices:
		return fmt.Errorf("a Count of %d for %d devices: want %d or no Count", r.Count, devices, devices)
	}
	return nil
}

// forNode returns the records for node, in order.
func (g Gres) forNode(node string) []GresRecord {
	var records []GresRecord
	for _, record := range g.Records {
		if record.NodeName != "" {
			if match, err := MatchHost(record.NodeName, node); err != nil || !match {
				continue
			}
		}
		records = append(records, record)
	}
	return records
}

// autoDetect returns what finds the node's GPUs. A line with the node's name
// trumps the line without one; on a line with Name and without NodeName Slurm
// ignores the key.
func (g Gres) autoDetect(node string) string {
	for _, record := range g.forNode(node) {
		if record.NodeName != "" && record.AutoDetect != "" {
			return record.AutoDetect
		}
	}
	return g.AutoDetect
}
