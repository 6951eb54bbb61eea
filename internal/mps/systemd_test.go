package mps

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// manager is a systemd of one unit: it starts what it is asked to and ends it
// with all of its session.
type manager struct {
	mu         sync.Mutex
	properties map[string]any
	process    *exec.Cmd
	ended      chan struct{}
	calls      []string

	exists int    // how often the unit is there when it is started
	result string // of the start; "" is done
	stuck  bool   // stop is never done
}

func (m *manager) note(call string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, call)
}

func (m *manager) StartTransientUnitContext(_ context.Context, name, mode string, properties []dbus.Property, result chan<- string) (int, error) {
	m.note("start " + name + " " + mode)
	if m.exists > 0 {
		m.exists--
		return 0, godbus.Error{Name: unitExists}
	}
	m.properties = map[string]any{}
	for _, p := range properties {
		m.properties[p.Name] = p.Value.Value()
	}
	if m.result != "" {
		result <- m.result
		return 1, nil
	}
	// setpriv itself would need the test's root folder to be a whole system.
	start := reflect.ValueOf(m.properties["ExecStart"]).Index(0).FieldByName("Args").Interface().([]string)
	program := start[len(start)-2:]
	fd, err := unix.Dup(int(m.properties["StandardOutputFileDescriptor"].(godbus.UnixFD)))
	if err != nil {
		return 0, err
	}
	output := os.NewFile(uintptr(fd), "output")
	defer output.Close()
	m.process = exec.Command(program[0], program[1:]...)
	m.process.Env, _ = m.properties["Environment"].([]string)
	m.process.Stdout, m.process.Stderr = output, output
	m.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: alice, Gid: alice}}
	if err := m.process.Start(); err != nil {
		return 0, err
	}
	m.ended = make(chan struct{})
	go func() {
		_ = m.process.Wait()
		close(m.ended)
	}()
	result <- "done"
	return 1, nil
}

func (m *manager) StopUnitContext(_ context.Context, name, mode string, result chan<- string) (int, error) {
	m.note("stop " + name + " " + mode)
	if m.process == nil {
		return 0, godbus.Error{Name: noSuchUnit}
	}
	if m.stuck {
		return 1, nil
	}
	_ = syscall.Kill(-m.process.Process.Pid, syscall.SIGKILL)
	<-m.ended
	m.process = nil
	result <- "done"
	return 1, nil
}

func (m *manager) ResetFailedUnitContext(_ context.Context, name string) error {
	m.note("reset " + name)
	return godbus.Error{Name: noSuchUnit}
}

func (m *manager) GetUnitPropertyContext(_ context.Context, _, property string) (*dbus.Property, error) {
	state := "inactive"
	if m.process != nil {
		select {
		case <-m.ended:
			state = "failed"
		default:
			state = "active"
		}
	}
	return &dbus.Property{Name: property, Value: godbus.MakeVariant(state)}, nil
}

func (m *manager) GetServicePropertyContext(_ context.Context, _, property string) (*dbus.Property, error) {
	if m.process == nil {
		return nil, godbus.Error{Name: noSuchUnit}
	}
	return &dbus.Property{Name: property, Value: godbus.MakeVariant("/gputune.slice/x.service")}, nil
}

func (m *manager) Close() {}

func underManager(t *testing.T) (*bed, *manager) {
	t.Helper()
	b, m := newBed(t), &manager{}
	b.must(os.WriteFile(b.host.path("/usr/bin/setpriv"), nil, 0o755))
	b.host.Systemd = func(context.Context) (Systemd, error) { return m, nil }
	return b, m
}

func TestUnit(t *testing.T) {
	t.Parallel()
	b, m := underManager(t)
	for i, uuid := range []string{gpuB, gpuA, "GPU-other"} {
		dir := b.host.path("/proc/driver/nvidia/gpus/0000:0" + string(rune('1'+i)) + ":00.0")
		b.must(os.MkdirAll(dir, 0o755))
		text := "Model: \t\t NVIDIA H200\nGPU UUID: \t " + uuid + "\nDevice Minor: \t " + string(rune('4'+i)) + "\n"
		b.must(os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644))
	}
	m.exists = 2
	s := specOf(alice, gpuA, gpuB)
	b.start(s)
	if got := b.ask(alice, s); !strings.HasPrefix(got, "server ") {
		t.Error(got)
	}
	args := reflect.ValueOf(m.properties["ExecStart"]).Index(0).FieldByName("Args").Interface()
	want := []string{
		b.host.path("/usr/bin/setpriv"), "--reuid=64001", "--regid=64001", "--clear-groups", "--inh-caps=-all", "--",
		b.programs.Control(), "-f",
	}
	if !reflect.DeepEqual(args, want) {
		t.Errorf("command %v", args)
	}
	for name, value := range map[string]any{
		"Slice": "gputune.slice", "Type": "simple", "KillMode": "control-group", "StandardInput": "null", "DevicePolicy": "closed",
		"NoNewPrivileges": true, "TimeoutStopUSec": uint64(300_000), "CollectMode": "inactive-or-failed",
		"DeviceAllow": []deviceAllow{
			{"/dev/nvidiactl", "rw"}, {"/dev/nvidia-uvm", "rw"}, {"/dev/nvidia-uvm-tools", "rw"}, {"/dev/nvidia4", "rw"}, {"/dev/nvidia5", "rw"},
		},
	} {
		if !reflect.DeepEqual(m.properties[name], value) {
			t.Errorf("%s is %v, want %v", name, m.properties[name], value)
		}
	}
	if _, given := m.properties["Delegate"]; given {
		t.Error("Delegate is given")
	}
	environment := strings.Join(m.properties["Environment"].([]string), "\n")
	if !strings.Contains(environment, "CUDA_VISIBLE_DEVICES="+gpuA+","+gpuB+"\n") || strings.Contains(environment, "HOME=") {
		t.Errorf("environment %s", environment)
	}
	b.must(b.host.Stop(context.Background(), gpuA))
	b.gone(s)
	calls := strings.Join(m.calls, "\n")
	unit := UnitName(s.Job)
	if once := "start " + unit + " fail\n"; calls != strings.Repeat(once, 3)+"stop "+unit+" replace\nreset "+unit {
		t.Errorf("calls:\n%s", calls)
	}
}

func TestUnitFails(t *testing.T) {
	for name, test := range map[string]struct {
		fault string
		spoil func(*bed, *manager)
		want  string
	}{
		"ends":       {fault: "start fail", want: "it ended before it answered: UNIT is failed: Failed to start: the fault was asked for"},
		"result":     {spoil: func(_ *bed, m *manager) { m.result = "failed" }, want: "systemd: start UNIT: failed"},
		"exists":     {spoil: func(_ *bed, m *manager) { m.exists = 1 << 30 }, want: "systemd: start UNIT: "},
		"no setpriv": {spoil: func(b *bed, _ *manager) { b.must(os.Remove(b.host.path("/usr/bin/setpriv"))) }, want: "setpriv is not at /usr/bin or /bin: install util-linux"},
		"no systemd": {
			spoil: func(b *bed, _ *manager) {
				b.host.Systemd = func(context.Context) (Systemd, error) { return nil, errors.New("no bus") }
			}, want: "no bus",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, m := underManager(t)
			b.host.Limits.Ready = 2 * time.Second
			if test.fault != "" {
				b.must(b.programs.Faults(test.fault))
			}
			if test.spoil != nil {
				test.spoil(b, m)
			}
			s := specOf(alice, gpuA)
			err := b.host.Start(context.Background(), s)
			want := "MPS daemon of job " + s.Job + ": " + strings.ReplaceAll(test.want, "UNIT", UnitName(s.Job))
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			b.host.Systemd = func(context.Context) (Systemd, error) { return m, nil }
			b.gone(s)
		})
	}
}

// TestUnitStuck: a unit that does not stop is an error, and nothing is forgotten.
func TestUnitStuck(t *testing.T) {
	t.Parallel()
	b, m := underManager(t)
	b.host.Limits.Kill = 200 * time.Millisecond
	s := specOf(alice, gpuA)
	b.start(s)
	m.stuck = true
	b.must(b.programs.Faults("quit refuse"))
	err := b.host.Stop(context.Background(), gpuA)
	if err == nil || !strings.Contains(err.Error(), "systemd: stop "+UnitName(s.Job)+": context deadline exceeded") {
		t.Errorf("got %v", err)
	}
	if value, err := b.host.Value(gpuA); err != nil || value != s.String() {
		t.Errorf("value %q, %v", value, err)
	}
	m.stuck = false
}
