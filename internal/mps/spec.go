package mps

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Spec says everything about a job's daemon.
type Spec struct {
	Job      string // Slurm's number of the job, decimal
	UID, GID uint32
	// GPUs are the UUIDs, GPU-…, of all GPUs that the daemon serves, in the order
	// in which its clients number them. There is at least one; the first names
	// the daemon.
	GPUs []string
	// Percent is the part of a GPU's SMs that a client gets at most, 1 to 100;
	// 0 sets no limit.
	Percent int
	// Memory is how much of each GPU's memory a client gets at most, in MiB; 0
	// sets no limit.
	Memory uint64
	// Program is the path of nvidia-cuda-mps-control; "" looks for it where
	// packages put it.
	Program string
}

// Bounds of a Spec. A node has 16 GPUs at most, a name of one has 40 bytes.
const (
	maxGPUs   = 64
	maxUUID   = 80
	maxMemory = 1 << 40
)

// String writes the spec as ParseSpec takes it. Equal specs have equal texts.
func (s Spec) String() string {
	text := fmt.Sprintf("job=%s,uid=%d,gid=%d,gpus=%s", s.Job, s.UID, s.GID, strings.Join(s.GPUs, "+"))
	if s.Percent != 0 {
		text += fmt.Sprintf(",percent=%d", s.Percent)
	}
	if s.Memory != 0 {
		text += fmt.Sprintf(",mem=%dM", s.Memory)
	}
	if s.Program != "" {
		text += ",program=" + s.Program
	}
	return text
}

// ParseSpec reads what String has written, and nothing else.
func ParseSpec(text string) (Spec, error) {
	var s Spec
	for item := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(item, "=")
		var err error
		switch key {
		case "job":
			s.Job = value
		case "uid":
			s.UID, err = number(value)
		case "gid":
			s.GID, err = number(value)
		case "gpus":
			s.GPUs = strings.Split(value, "+")
		case "percent":
			s.Percent, err = strconv.Atoi(value)
		case "mem":
			s.Memory, err = strconv.ParseUint(strings.TrimSuffix(value, "M"), 10, 64)
		case "program":
			s.Program = value
		}
		if err != nil {
			return Spec{}, fmt.Errorf("MPS daemon: %.40q: %w", item, err)
		}
	}
	if err := s.check(); err != nil {
		return Spec{}, err
	}
	if again := s.String(); again != text {
		return Spec{}, fmt.Errorf("MPS daemon: %.80q: want the form %s", text, again)
	}
	return s, nil
}

func number(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}

// check refuses what cannot be a daemon, so that no text of a spec can leave a
// folder, end a unit's name or add an item.
func (s Spec) check() error {
	if n, err := strconv.ParseUint(s.Job, 10, 64); err != nil || n == 0 || strconv.FormatUint(n, 10) != s.Job {
		return fmt.Errorf("MPS daemon: job %.40q: want a job's number", s.Job)
	}
	if len(s.GPUs) == 0 || len(s.GPUs) > maxGPUs {
		return fmt.Errorf("MPS daemon of job %s: %d GPUs: want 1 to %d", s.Job, len(s.GPUs), maxGPUs)
	}
	for i, uuid := range s.GPUs {
		if !isUUID(uuid) {
			return fmt.Errorf("MPS daemon of job %s: %.40q: want the UUID of a GPU, GPU-…", s.Job, uuid)
		}
		if slices.Contains(s.GPUs[:i], uuid) {
			return fmt.Errorf("MPS daemon of job %s: %s is there twice", s.Job, uuid)
		}
	}
	if s.Percent < 0 || s.Percent > 100 {
		return fmt.Errorf("MPS daemon of job %s: %d percent: want 1 to 100", s.Job, s.Percent)
	}
	if s.Memory > maxMemory {
		return fmt.Errorf("MPS daemon of job %s: %d MiB per client: want %d at most", s.Job, s.Memory, uint64(maxMemory))
	}
	if s.Program != "" && (!path.IsAbs(s.Program) || path.Clean(s.Program) != s.Program || strings.TrimLeft(s.Program, pathBytes) != "") {
		return fmt.Errorf("MPS daemon of job %s: program %.80q: want a clean absolute path of letters, digits and any of / . _ + -", s.Job, s.Program)
	}
	return nil
}

const (
	alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	pathBytes    = alphanumeric + "/._+-"
)

// isUUID tells whether text can be the name that NVIDIA gives a GPU. It becomes
// part of a file's name.
func isUUID(text string) bool {
	rest, isGPU := strings.CutPrefix(text, "GPU-")
	return isGPU && rest != "" && len(text) <= maxUUID && strings.TrimLeft(rest, alphanumeric+"-") == ""
}
