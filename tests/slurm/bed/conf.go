package bed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// parameter is one line of slurm.conf; key is "Key" of "Key=value words".
type parameter struct{ key, value string }

// parameters is a slurm.conf. Slurm warns on every command's stderr of a
// parameter given twice, so that what replaces one cannot be appended.
type parameters []parameter

// Lines of these begin a record and may be repeated (slurm.conf(5)).
var repeatable = []string{"NodeName", "PartitionName", "NodeSet", "DownNodes", "SlurmctldHost", "Include"}

// These tell a bed's files and processes from others'.
var reserved = []string{
	"ClusterName", "SlurmctldHost", "SlurmctldPort", "SlurmdPort", "AuthInfo", "PlugStackConfig",
	"StateSaveLocation", "SlurmdSpoolDir", "SlurmctldPidFile", "SlurmdPidFile", "SlurmctldLogFile", "SlurmdLogFile",
}

func containsKey(keys []string, key string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return strings.EqualFold(k, key) })
}

// set puts a parameter in, in the place of an earlier one of its name.
func (p *parameters) set(key, value string) {
	if !containsKey(repeatable, key) {
		for i := range *p {
			if strings.EqualFold((*p)[i].key, key) {
				(*p)[i].value = value
				return
			}
		}
	}
	*p = append(*p, parameter{key, value})
}

// setLine is set for a line that a user of the package gave. Empty lines and
// comments are dropped.
func (p *parameters) setLine(line string) error {
	line = strings.TrimSpace(line)
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	key, value, found := strings.Cut(line, "=")
	key = strings.TrimSpace(key)
	if !found || key == "" || strings.ContainsAny(key, " \t") || strings.ContainsAny(line, "\r\n") {
		return fmt.Errorf("bed: Options.ExtraSlurmConf %q: want Parameter=value in one line", line)
	}
	if containsKey(reserved, key) {
		return fmt.Errorf("bed: Options.ExtraSlurmConf %q: %s is the bed's own", line, key)
	}
	p.set(key, strings.TrimSpace(value))
	return nil
}

func (p parameters) String() string {
	var text strings.Builder
	for _, parameter := range p {
		fmt.Fprintf(&text, "%s=%s\n", parameter.key, parameter.value)
	}
	return text.String()
}

// loopbackOnly reports whether the daemons can be told to listen on loopback
// alone. Slurm does that only for the address that the host's name has.
func loopbackOnly(addresses []string) bool {
	return len(addresses) > 0 && !slices.ContainsFunc(addresses, func(a string) bool { return a != "127.0.0.1" })
}

func (b *Bed) slurmConf() (parameters, error) {
	o := b.options
	in := func(names ...string) string { return filepath.Join(append([]string{b.Dir}, names...)...) }
	var p parameters
	p.set("ClusterName", b.Cluster)
	// What looks at the machine's processes tells jobs by their numbers.
	p.set("FirstJobId", strconv.Itoa(b.firstJob))
	p.set("SlurmctldHost", b.host+"(127.0.0.1)")
	p.set("SlurmctldPort", strconv.Itoa(b.ports[0]))
	p.set("SlurmdPort", strconv.Itoa(b.ports[1]))
	p.set("SlurmUser", "root")
	p.set("SlurmdUser", "root")
	p.set("AuthType", "auth/"+b.Auth)
	p.set("CredType", "cred/"+b.Auth)
	if b.Auth == authMunge {
		p.set("AuthInfo", "socket="+in("run", "munge.sock"))
	}
	if loopbackOnly(b.addresses) {
		p.set("CommunicationParameters", "NoCtldInAddrAny,NoInAddrAny")
	}
	p.set("StateSaveLocation", in("state"))
	p.set("SlurmdSpoolDir", in("spool"))
	p.set("SlurmctldPidFile", in("run", "slurmctld.pid"))
	p.set("SlurmdPidFile", in("run", "slurmd.pid"))
	p.set("SlurmctldLogFile", in("log", "slurmctld.log"))
	p.set("SlurmdLogFile", in("log", "slurmd.log"))
	p.set("SlurmctldDebug", "info")
	p.set("SlurmdDebug", "info")
	p.set("MailProg", "/bin/true")
	p.set("ProctrackType", o.ProctrackType)
	p.set("TaskPlugin", o.TaskPlugin)
	p.set("PlugStackConfig", in("etc", "plugstack.conf"))
	p.set("SelectType", "select/cons_tres")
	p.set("SelectTypeParameters", "CR_Core")
	p.set("SchedulerType", "sched/backfill")
	// The defaults are made for a large cluster: a job could wait for half a
	// minute although the node is free. With these a batch job starts within the
	// second that slurmctld's loop takes.
	p.set("SchedulerParameters", "batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=1")
	p.set("ReturnToService", "2")
	p.set("MpiDefault", "none")
	p.set("SwitchType", "switch/none")
	p.set("AccountingStorageType", "accounting_storage/none")
	p.set("JobAcctGatherType", "jobacct_gather/none")
	// Take the number of CPUs from here, whatever slurmd finds.
	p.set("SlurmdParameters", "config_overrides")
	p.set("KillWait", "5")
	p.set("InactiveLimit", "0")
	p.set("MinJobAge", "30")
	if o.Prolog != "" {
		p.set("Prolog", b.expand(o.Prolog))
	}
	if o.Epilog != "" {
		p.set("Epilog", b.expand(o.Epilog))
	}
	node := fmt.Sprintf("%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d Sockets=1 CoresPerSocket=%d ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN",
		b.Node, b.host, b.ports[1], o.NCPU, o.NCPU)
	if o.NodeGres != "" {
		p.set("GresTypes", strings.Join(gresTypes(o.NodeGres), ","))
		node += " Gres=" + o.NodeGres
	}
	p.set("NodeName", node)
	p.set("PartitionName", strings.TrimSpace(fmt.Sprintf("main Nodes=%s Default=YES MaxTime=%s State=UP %s", b.Node, o.MaxTime, o.Partition)))
	for _, line := range o.ExtraSlurmConf {
		if err := p.setLine(b.expand(line)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// gresTypes are the names in a node's Gres value: "gpu:a100:2,mps:400" has gpu
// and mps.
func gresTypes(nodeGres string) []string {
	var types []string
	for gres := range strings.SplitSeq(nodeGres, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(gres), ":")
		if name != "" && !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	return types
}

// gresConf are the lines of gres.conf.
func (b *Bed) gresConf() []string {
	lines := make([]string, 0, len(b.options.ExtraGres)+1)
	replaced := false
	for _, line := range b.options.ExtraGres {
		lines = append(lines, b.expand(line))
		words := strings.Fields(strings.ToLower(line))
		replaced = replaced || slices.Contains(words, "name=gpu")
	}
	switch n := b.options.GPUs; {
	case replaced || n == 0:
	case n == 1:
		lines = append(lines, "Name=gpu File="+b.GPU(0))
	default:
		lines = append(lines, fmt.Sprintf("Name=gpu File=%s[0-%d]", strings.TrimSuffix(b.GPU(0), "0"), n-1))
	}
	return lines
}

func (b *Bed) cgroupConf() []string {
	yesNo := func(yes bool) string {
		if yes {
			return "yes"
		}
		return "no"
	}
	return []string{
		"CgroupPlugin=cgroup/v1",
		"CgroupMountpoint=" + cgroupRoot,
		"ConstrainCores=" + yesNo(b.options.ConstrainCores),
		"ConstrainDevices=" + yesNo(b.options.ConstrainDevices),
	}
}

func (b *Bed) writeConfiguration() error {
	slurm, err := b.slurmConf()
	if err != nil {
		return err
	}
	plugstack := make([]string, len(b.options.PlugstackLines))
	for i, line := range b.options.PlugstackLines {
		plugstack[i] = b.expand(line)
	}
	files := map[string]string{
		"slurm.conf":     slurm.String(),
		"gres.conf":      joinLines(b.gresConf()),
		"cgroup.conf":    joinLines(b.cgroupConf()),
		"plugstack.conf": joinLines(plugstack),
	}
	for name, text := range files {
		path := filepath.Join(b.Dir, "etc", name)
		// Others' umask does not count: srun reads these as any user.
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("bed: %w", err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			return fmt.Errorf("bed: %w", err)
		}
	}
	return nil
}

func joinLines(lines []string) string {
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(line)
		text.WriteByte('\n')
	}
	return text.String()
}
