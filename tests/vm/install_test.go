//go:build vm

package vm

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gputune/tests/documents"
	"gputune/tests/vm/numavm"
)

// bare are the settings of a machine whose Slurm knows nothing of gputune, as
// before the README's first step. The driver's files are where a driver has them,
// so that nothing has to be said in gputune.toml.
const bare = "PROC_DRIVER=1 PROLOG_FLAGS=none PLUGSTACK='# The plugins of this site.'"

// packagesFolder has a folder for each release of the package, 1 and 2, with the
// deb in it; relative to vm-tools.
const packagesFolder = "packages"

// packages builds the package, and the same once more as a newer one.
var packages = sync.OnceValue(func() error {
	tree, err := numavm.FindTree()
	if err != nil {
		return err
	}
	for _, release := range []string{"1", "2"} {
		command := exec.Command("make", "-s", "deb", "PACKAGE_RELEASE="+release)
		command.Dir = tree
		command.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=", "LEVEL=none") // emulated, xz takes longer than all the rest
		output, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("make deb: %w\n%s", err, output)
		}
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		folder := filepath.Join(tree, "build/vm-tools", packagesFolder, release)
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := copyInto(folder, filepath.Join(tree, lines[len(lines)-1])); err != nil {
			return err
		}
	}
	return nil
})

func copyInto(folder, path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(folder, filepath.Base(path)))
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}

// readme returns what the README tells people to type, by what it is for.
func readme(t *testing.T) map[string][]string {
	t.Helper()
	tree, err := numavm.FindTree()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(tree, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := documents.Blocks(string(text))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, b := range blocks {
		if b.Machine != "" {
			found[b.Machine] = append(found[b.Machine], b.Text)
		}
	}
	if len(found["install"]) != 5 || len(found["remove"]) != 1 || len(found) != 2 {
		t.Fatalf("the README has %d blocks for installing and %d for removing: want five steps and one: %v", len(found["install"]), len(found["remove"]), found)
	}
	return found
}

// siteFolder is where an administrator has put the package, in the guest.
const siteFolder = "/tmp/site"

// provide puts a release of the package there in place of another.
func (m *machine) provide(t *testing.T, release string) {
	t.Helper()
	m.must(t, fmt.Sprintf("rm -rf %[1]s && mkdir %[1]s && cp %[2]s/%[3]s/%[4]s/*.deb %[1]s", siteFolder, guestTools, packagesFolder, release))
}

// typedTimeout is for dpkg, which unpacks 40 MB and has each file written to disk.
const typedTimeout = 3 * commandTimeout

// typed runs commands as an administrator's shell would, and returns what they say.
func (m *machine) typed(t *testing.T, commands string) string {
	t.Helper()
	result := m.tryFor(t, typedTimeout, "set -eu -o pipefail; export DEBIAN_FRONTEND=noninteractive; cd "+siteFolder+"\n"+commands)
	if result.Code != 0 {
		t.Fatalf("status %d of %s", result.Code, commands)
	}
	return result.Output
}

// record is a script that writes down the whole node: files, units, processes,
// mounts, cgroups, Slurm's configuration and the GPUs. Left out is what Slurm,
// systemd and package managers write down about what they do, and this script.
const record = `{
echo "# files"
` + guestTools + `/listing -unchanged /usr -without /run/testroot -without /var/log -without /run/log \
	-without /var/lib/apt -without /var/cache/apt -without /var/cache/debconf -without /var/lib/dpkg/status-old \
	-without /run/systemd/ask-password-block -without /run/systemd/incoming -without /run/systemd/journal/seqnum \
	-without /run/systemd/journal/kernel-seqnum -without /run/systemd/propagate -without /run/systemd/unit-root \
	-without /var/spool/slurmctld -without /var/spool/slurmd -without /run/slurmd.pid -without /run/slurmctld.pid \
	/etc /usr /var /run /root /home /opt /srv || exit
echo "# units"
systemctl list-unit-files --no-legend --no-pager | sort
systemctl list-units --all --plain --no-legend --no-pager | awk '{ print $1, $2, $3, $4 }' | sort
echo "# processes"
ps -e -o ppid=,user=,args= | awk -v self=$$ '$1 != 2 && $1 != self && $0 !~ /listing/ { $1 = ""; print }' | sort
echo "# mounts"
cut -d ' ' -f 4- /proc/self/mountinfo
echo "# cgroups"
find /sys/fs/cgroup -type d ! -path '*/numavm.service/*' | sort
echo "# Slurm"
scontrol show config | grep -vE '^(BOOT_TIME|NEXT_JOB_ID|Configuration data)'
echo "# GPUs"
cat ` + gpuState + `
} >/dev/shm/%s`

// enableSlurm is "systemctl enable munge slurmctld slurmd" without the ten seconds
// of emulation that it takes where there is /etc/init.d.
const enableSlurm = `for unit in munge slurmctld slurmd; do
	ln -s $(systemctl show -p FragmentPath --value $unit) /etc/systemd/system/multi-user.target.wants/$unit.service || exit
done`

// From a bare machine with Slurm, following the README to the letter: gputune is
// installed and works, is upgraded while jobs run, is removed, and the node is as
// it was before, byte for byte.
func testInstall(t *testing.T, m *machine) {
	if err := packages(); err != nil {
		t.Fatal(err)
	}
	steps := readme(t)
	// A site's Slurm is enabled, and has had jobs.
	m.must(t, "echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/emulated && "+installMPS+" && "+enableSlurm+" && srun -Q -n1 true")
	m.waitIdle(t)
	m.must(t, fmt.Sprintf(record, "before"))
	gpus := m.gpuState(t)

	m.provide(t, "1")
	said := ""
	for _, step := range steps["install"] {
		said = m.typed(t, step)
	}
	if !strings.Contains(said, "--gpu-numa-bind=") || !strings.Contains(said, "gputune: node1 task 0: gpu 0000:") || !strings.Contains(said, ", 0 bad\n") {
		t.Errorf("the last step said %q", said)
	}
	m.checkConfigurations(t, gpus)

	p := policy{mem: "bind"}
	step := m.hold(t, "step", "srun -Q -n2 --gpus-per-task=1 "+p.option(), 2)
	bound := step.look(t)
	m.check(t, bound, p)
	job := m.holdJob(t, asNobody, "--gpus=2 --gpu-clocks=1200 --gpu-power=500 --gpu-mps=50")
	job.checkSettings(t, gpus, map[string]string{"gpu_clocks": "1200,1200", "power_limit": "500000", "compute_mode": "3"})
	const agent = "systemctl show -p ActiveState -p MainPID gputuned"
	was := m.must(t, agent)

	m.provide(t, "2")
	m.typed(t, steps["install"][0])
	if version := m.must(t, "dpkg-query -W -f '${Status} ${Version}' gputune"); !strings.HasPrefix(version, "install ok installed ") || !strings.HasSuffix(version, "-2") {
		t.Errorf("after the upgrade: %q", version)
	}
	if is := m.must(t, agent); is == was || !strings.Contains(is, "ActiveState=active") {
		t.Errorf("the agent is %q after the upgrade, was %q", is, was)
	}
	if now := m.gpuState(t); now != job.seen {
		t.Errorf("after the upgrade the GPUs are\n%s, were\n%s", now, job.seen)
	}
	if said := m.askMPS(t, job.id); !strings.HasPrefix(said, "server ") {
		t.Errorf("after the upgrade the job's MPS daemon says %q", said)
	}
	m.check(t, step.look(t), p)
	step.release(t)
	job.release(t)
	m.checkAsBefore(t, gpus)
	if end := m.must(t, "scontrol show job "+job.id); !strings.Contains(end, "JobState=COMPLETED") || !strings.Contains(end, "ExitCode=0:0") {
		t.Errorf("the job ended as %s", end)
	}
	if said := m.typed(t, "srun -n1 --gpus=1 --gpu-numa-bind=verbose true 2>&1"); !strings.Contains(said, ", local\n") {
		t.Errorf("after the upgrade a step says %q", said)
	}
	m.checkLog(t)

	m.typed(t, steps["remove"][0])
	m.waitIdle(t)
	m.must(t, fmt.Sprintf(record, "after"))
	if different := m.try(t, "diff /dev/shm/before /dev/shm/after"); different.Code != 0 {
		t.Errorf("the node is not as it was before:\n%s", different.Output)
	}
	if help := m.must(t, "srun --help; srun -Q -n1 true"); strings.Contains(help, "gputune") {
		t.Errorf("srun still has options: %s", help)
	}
}

// checkConfigurations wants jobs to run when gputune.toml is not there or not to
// be trusted, and slurmd's log to say it in one line.
func (m *machine) checkConfigurations(t *testing.T, gpus string) {
	t.Helper()
	const file = "/etc/gputune/gputune.toml"
	for _, c := range []struct {
		change, says string
		set          bool // the option of the job is carried out
	}{
		{"rm", file + " is not there: the defaults are used\n", true},
		{"chmod 664", file + ": mode 0664: its group or others may write to it: want 0644 or less (chmod go-w)", false},
	} {
		m.must(t, "cp -p "+file+" /tmp/gputune.toml && "+c.change+" "+file)
		result := m.try(t, "srun -Q -n1 --gpus=1 --gpu-clocks=1200 --gpu-numa-bind=verbose cat "+gpuState+" 2>&1")
		m.must(t, "cp -p /tmp/gputune.toml "+file)
		m.waitIdle(t)
		told := strings.Contains(result.Output, "gputune: node1: warning: the job's options are not carried out: ") && strings.Contains(result.Output, c.says)
		if set := strings.Contains(result.Output, "/gpu_clocks 1200,1200\n"); result.Code != 0 || !strings.Contains(result.Output, ", local\n") || set != c.set || told == c.set {
			t.Errorf("%s: status %d, said %s", c.change, result.Code, result.Output)
		}
		if log := m.must(t, "grep -F "+file+" /var/log/slurm/slurmd.log || true"); strings.Count(log, "\n") != 1 || !strings.Contains(log, c.says) {
			t.Errorf("%s: slurmd's log has %q, want one line with %q", c.change, log, c.says)
		}
		m.forgetLog(t)
		if now := m.gpuState(t); now != gpus {
			t.Errorf("%s: the GPUs are\n%s, were\n%s", c.change, now, gpus)
		}
	}
}
