package mig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/internal/ledger"
	"gputune/internal/mig"
	"gputune/internal/setting"
)

const uuid = "GPU-4b0480b4-aaaa"

// machine is a node with one card, and programs that come and go.
type machine struct {
	t    *testing.T
	card *fakeCard
	root string
}

func newMachine(t *testing.T, layout string) *machine {
	return &machine{t, newCard(layout), t.TempDir()}
}

// Device implements setting.Devices.
func (m *machine) Device(string) (setting.Device, error) { return device{card: m.card}, nil }

// Close implements setting.Devices.
func (m *machine) Close() error { return nil }

type device struct {
	setting.Device
	card *fakeCard
}

func (d device) PCI() string            { return d.card.PCI() }
func (d device) MIG() (mig.Card, error) { return d.card, nil }

// program is one that can be killed: it has a ledger of its own.
func (m *machine) program(do func(l *ledger.Ledger, s setting.Setting)) (died bool) {
	m.t.Helper()
	env := setting.NewEnvironment(m.root, func() (setting.Devices, error) { return m, nil })
	resolve := func(key string) (setting.Setting, error) { return setting.Parse(env, key) }
	l, err := ledger.Open("state", ledger.Options{Root: m.root, BootID: "boot", Resolve: resolve, LockWait: 1})
	if err != nil {
		m.t.Fatal(err)
	}
	s, err := resolve(setting.GPUKey(uuid, setting.MIGName))
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		r := recover()
		if _, died = r.(killed); r != nil && !died {
			panic(r)
		}
		// The kernel gives the locks of a process back, not those of a panic.
		if locks := filepath.Join(m.root, "state/locks"); died {
			if err := errors.Join(os.RemoveAll(locks), os.Mkdir(locks, 0o700)); err != nil {
				m.t.Fatal(err)
			}
		}
	}()
	do(l, s)
	return false
}

func (m *machine) apply(value string) (err error, died bool) { //nolint:revive // the error is what a test looks at first
	died = m.program(func(l *ledger.Ledger, s setting.Setting) {
		_, err = l.Apply(context.Background(), "7", []ledger.Change{{Setting: s, Value: value}})
	})
	return err, died
}

func (m *machine) release() (report ledger.Report, err error, died bool) { //nolint:revive // as above
	died = m.program(func(l *ledger.Ledger, _ setting.Setting) {
		report, err = l.Release(context.Background(), "7")
	})
	return report, err, died
}

// held tells whether the ledger has something of the job.
func (m *machine) held() bool {
	left, err := filepath.Glob(filepath.Join(m.root, "state/jobs/*"))
	if err != nil {
		m.t.Fatal(err)
	}
	return len(left) > 0
}

// cases are what a job can find and want.
var cases = []struct{ prior, wanted string }{
	{"off", "on:1g.18gb@0:1,1g.18gb@1:1,1g.18gb@2:1"},
	{"off", "on:3g.71gb@0:4,3g.71gb@4:4"},
	{"on", "on:1g.18gb@0:1,1g.18gb+me@1:1"},
	{"on:3g.71gb@0:4,3g.71gb@4:4", "on:1g.18gb@0:1,1g.18gb@1:1"},
	{"on:3g.71gb@0:4,3g.71gb@4:4", "on:3g.71gb@0:4,1g.18gb@4:1"},
	{"on:3g.71gb@0:4[1c.3g.71gb@0:1/2c.3g.71gb@1:2],3g.71gb@4:4[]", "on:3g.71gb@0:4,3g.71gb@4:4"},
	{"on:3g.71gb@0:4,3g.71gb@4:4", "on:3g.71gb@0:4[1c.3g.71gb@0:1/2c.3g.71gb@1:2],3g.71gb@4:4[]"},
	{"on:1g.18gb@0:1,1g.18gb@1:1,1g.18gb@2:1[]", "on:7g.141gb@0:8"},
	{"on:7g.141gb@0:8[2c.7g.141gb@0:2/2c.7g.141gb@2:2]", "on:1g.18gb@0:1,2g.35gb@2:2,3g.71gb@4:4"},
}

// TestKilled kills the Prolog before each call that changes the card, the Epilog
// before each of those that it makes then, and a second Epilog half-way through
// its own; the third one finds its way. Profiles and places are those from before.
func TestKilled(t *testing.T) {
	runs, deaths := 0, 0
	for _, ampere := range []bool{false, true} {
		for n, c := range cases {
			if testing.Short() && n%4 != 0 {
				continue
			}
			prologDied := true
			for kill := 0; prologDied; kill++ {
				epilogDied := true
				for killEpilog := 0; epilogDied; killEpilog++ {
					runs++
					m := newMachine(t, c.prior)
					m.card.ampere, m.card.killAt = ampere, kill
					var err error
					if err, prologDied = m.apply(c.wanted); !prologDied && (err != nil || m.card.layout() != c.wanted) {
						t.Fatalf("%s to %s: %v, %s", c.prior, c.wanted, err, m.card.layout())
					}
					found := m.card.layout()
					m.card.killAt = len(m.card.calls) + killEpilog
					if _, err, epilogDied = m.release(); epilogDied {
						deaths++
						if !m.held() {
							t.Fatalf("%s to %s: the ledger forgot a killed Epilog's work", c.prior, c.wanted)
						}
						m.card.killAt = len(m.card.calls) + killEpilog/2
						again := false
						if _, err, again = m.release(); again {
							deaths++
							m.card.killAt = -1
							_, err, _ = m.release()
						}
					}
					if prologDied {
						deaths++
					}
					if err != nil || m.card.layout() != c.prior || m.held() {
						t.Fatalf("%s to %s, killed at call %d (%s), then at %d: %v, %s, held %v",
							c.prior, c.wanted, kill, found, killEpilog, err, m.card.layout(), m.held())
					}
				}
			}
		}
	}
	t.Logf("%d runs, %d programs killed", runs, deaths)
	if !testing.Short() && (runs < 500 || deaths < 1000) {
		t.Error("too few to say anything")
	}
}

// TestForeign: what somebody else set meanwhile stays, whether the job's change
// was finished or not.
func TestForeign(t *testing.T) {
	for _, kill := range []int{3, -1} {
		m := newMachine(t, "on:3g.71gb@0:4")
		m.card.killAt = kill
		if err, died := m.apply("on:1g.18gb@0:1,1g.18gb@1:1"); err != nil || died != (kill >= 0) {
			t.Fatal(err, died)
		}
		const foreign = "on:2g.35gb@4:2"
		m.card.killAt = -1
		m.card.instances = newCard(foreign).instances
		report, err, _ := m.release()
		if err != nil || len(report.Outcomes) != 1 || report.Outcomes[0].Action != ledger.Drifted || m.card.layout() != foreign || m.held() {
			t.Errorf("killed at %d: %+v, %v, %s", kill, report, err, m.card.layout())
		}
	}
}

// TestReset: a reset of the card, or a reboot, in the middle of the job takes
// all instances away, and from Hopper on a reboot the mode as well.
func TestReset(t *testing.T) {
	for _, c := range []struct {
		prior, after string
		want         string
		action       ledger.Action
	}{
		{"off", "on", "off", ledger.Restored},
		{"off", "off", "off", ledger.Unchanged},
		{"on:3g.71gb@4:4", "on", "on:3g.71gb@4:4", ledger.Restored},
	} {
		m := newMachine(t, c.prior)
		if err, _ := m.apply("on:1g.18gb@0:1,1g.18gb@1:1"); err != nil {
			t.Fatal(err)
		}
		reset := newCard(c.after)
		m.card.mode, m.card.instances = reset.mode, reset.instances
		report, err, _ := m.release()
		if err != nil || report.Outcomes[0].Action != c.action || m.card.layout() != c.want {
			t.Errorf("%+v: %+v, %v, %s", c, report, err, m.card.layout())
		}
	}
}

// TestFaults has each call of the card fail: once, each time, although it was
// done, or succeed and do nothing. Then the former layout is there, or the error
// names what is missing and the ledger still has it, so that the Epilog fails and
// can be run again.
func TestFaults(t *testing.T) {
	boom := errors.New("unknown error")
	reads := []string{"Mode", "Profiles", "Present", "Processes"}
	names := append(slices.Clone(reads), "SetMode", "Create", "Destroy", "CreatePart", "DestroyPart")
	kinds := map[string]failing{"fails": {err: boom}, "done": {err: boom, done: true}, "ignored": {ignored: true}}
	runs, failed, unclean := 0, 0, 0
	for n, c := range cases {
		if testing.Short() && n%8 != 0 {
			continue
		}
		for _, name := range names {
			for kind, f := range kinds {
				if kind != "fails" && slices.Contains(reads, name) {
					continue
				}
				for _, from := range []int{0, 1, 2, 5} {
					for _, forever := range []bool{false, true} {
						runs++
						m := newMachine(t, c.prior)
						m.card.fails = func(call string, times int) failing {
							if call == name && (times == from || forever && times > from) {
								return f
							}
							return failing{}
						}
						what := fmt.Sprintf("%s to %s: %s %s from %d, forever %v", c.prior, c.wanted, name, kind, from, forever)
						err, _ := m.apply(c.wanted)
						is := m.card.layout()
						switch {
						case err == nil && is != c.wanted:
							t.Errorf("%s: no error, but %s", what, is)
						case err != nil:
							failed++
							if is != c.prior && !m.held() {
								t.Errorf("%s: %v: %s and the ledger has forgotten it", what, err, is)
							}
							if is != c.prior && !strings.Contains(err.Error(), "not put back") {
								t.Errorf("%s: %s, and the error does not say so: %v", what, is, err)
							}
						}
						report, err, _ := m.release()
						is = m.card.layout()
						if err == nil && is != c.prior {
							t.Errorf("%s: release: no error, but %s", what, is)
						}
						if err != nil {
							unclean++
							if !m.held() {
								t.Errorf("%s: not put back, and forgotten: %v", what, err)
							}
							if is != c.prior && len(report.Outcomes) == 1 && !slices.Contains(reads, name) {
								lacks(t, what, err, parsed(t, is), parsed(t, c.prior))
							}
						}
						m.card.fails = nil
						if _, err, _ := m.release(); err != nil || m.card.layout() != c.prior || m.held() {
							t.Fatalf("%s: when the fault is gone: %v, %s", what, err, m.card.layout())
						}
					}
				}
			}
		}
	}
	t.Logf("%d runs, %d refused, %d times the Epilog fails first", runs, failed, unclean)
	if !testing.Short() && (failed < 50 || unclean < 50) {
		t.Error("too few to say anything")
	}
}

// lacks makes sure that an error names each instance that is missing or left over.
func lacks(t *testing.T, what string, err error, is, want mig.Layout) {
	t.Helper()
	for _, pair := range []struct {
		a, b mig.Layout
		word string
	}{{want, is, "missing"}, {is, want, "left over"}} {
		for _, i := range pair.a.Instances {
			there := slices.ContainsFunc(pair.b.Instances, func(o mig.Instance) bool { return o.Profile == i.Profile && o.Place == i.Place })
			if !there && !strings.Contains(err.Error(), i.String()+" is "+pair.word) {
				t.Errorf("%s: %s is %s, and the error does not say so: %v", what, i, pair.word, err)
			}
		}
	}
}

// TestKept: what the job found and wants as well is not touched, so that its
// UUID stays.
func TestKept(t *testing.T) {
	m := newMachine(t, "on:3g.71gb@0:4,3g.71gb@4:4")
	if err, _ := m.apply("on:3g.71gb@0:4,1g.18gb@4:1"); err != nil {
		t.Fatal(err)
	}
	if _, err, _ := m.release(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DestroyPart 68 0", "Destroy 68", "Create 1g.18gb@4:1", "CreatePart 20 whole", "DestroyPart 20 0", "Destroy 20",
		"Create 3g.71gb@4:4", "CreatePart 68 whole",
	}
	if !slices.Equal(m.card.calls, want) {
		t.Errorf("calls %q, want %q", m.card.calls, want)
	}
}

// TestBusy: instances that somebody uses are not taken away, and the error says
// who it is, before anything is changed.
func TestBusy(t *testing.T) {
	m := newMachine(t, "on:3g.71gb@0:4,3g.71gb@4:4")
	m.file("proc/4711/comm", "python\n")
	m.card.processes = []mig.Process{{PID: 4711, Instance: idAt(mig.Placement{Start: 4, Size: 4})}}
	err, _ := m.apply("on:3g.71gb@0:4,1g.18gb@4:1")
	var key *ledger.KeyError
	if !errors.As(err, &key) || !errors.Is(err, setting.ErrInUse) || err.Error() != "gpu 0000:07:00.0: MIG: it is in use by pid 4711 (python)" || m.card.calls != nil {
		t.Errorf("%v, calls %q", err, m.card.calls)
	}
	// The one that is used stays, so that the other can be taken.
	if err, _ := m.apply("on:1g.18gb@0:1,3g.71gb@4:4"); err != nil {
		t.Error(err)
	}
	// A job's own program that has not ended keeps its instance; the rest goes.
	m.card.processes = []mig.Process{{PID: 4712, Instance: idAt(mig.Placement{Start: 0, Size: 1})}}
	_, err, _ = m.release()
	const want = "job 7: gpu/GPU-4b0480b4-aaaa/mig: put back on:3g.71gb@0:4,3g.71gb@4:4: gpu 0000:07:00.0: MIG: 3g.71gb@0:4 is missing, 1g.18gb@0:1 is left over: "
	if err == nil || !strings.HasPrefix(err.Error(), want) || !m.held() {
		t.Errorf("%v", err)
	}
	m.card.processes = nil
	if _, err, _ = m.release(); err != nil || m.card.layout() != "on:3g.71gb@0:4,3g.71gb@4:4" || m.held() {
		t.Errorf("%v, %s", err, m.card.layout())
	}
}

// TestBusyMode: a card whose instances are in use is not told to leave MIG mode,
// which on Ampere would wait for the next reset.
func TestBusyMode(t *testing.T) {
	m := newMachine(t, "off")
	m.card.ampere = true
	if err, _ := m.apply("on:1g.18gb@0:1"); err != nil {
		t.Fatal(err)
	}
	m.card.processes = []mig.Process{{PID: 4711, Instance: idAt(mig.Placement{Start: 0, Size: 1})}}
	_, err, _ := m.release()
	const want = "MIG: mode is on instead of off, 1g.18gb@0:1 is left over: "
	if err == nil || !strings.Contains(err.Error(), want) || m.card.layout() != "on:1g.18gb@0:1" || !m.held() {
		t.Errorf("%v, want %q, %s", err, want, m.card.layout())
	}
}

func (m *machine) file(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(name, to string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		m.t.Fatal(err)
	}
}

// TestHolders: who has one of the card's device files open is named, too.
func TestHolders(t *testing.T) {
	m := newMachine(t, "off")
	m.file("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu3/gi1/access 12\ngpu3/gi1/ci0/access 13\ngpu31/gi1/access 14\n")
	for pid, open := range map[int][]string{
		20:          {"/dev/null", "/dev/nvidia3"},
		21:          {"/dev/nvidia30", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap14"},
		22:          {"/dev/nvidia-caps/nvidia-cap13"},
		23:          nil,
		os.Getpid(): {"/dev/nvidia3"},
	} {
		m.file(fmt.Sprintf("proc/%d/comm", pid), fmt.Sprintf("program%d\n", pid))
		for fd, to := range open {
			m.link(fmt.Sprintf("proc/%d/fd/%d", pid, fd), to)
		}
	}
	m.link("proc/self", "20")
	m.card.processes = []mig.Process{{PID: 30, Instance: -1}, {PID: 20, Instance: -1}}
	host := mig.Host{Root: m.root}
	if got, want := host.Holders(m.card), "pid 20 (program20), pid 22 (program22), pid 30 (unknown)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for pid := range 20 {
		m.card.processes = append(m.card.processes, mig.Process{PID: 100 + pid})
	}
	if got := host.Holders(m.card); !strings.HasSuffix(got, "pid 104 (unknown), 15 more") {
		t.Errorf("%q", got)
	}

	// On a card that has to be reset for its mode they are the reason, and the
	// mode does not wait for the next reset.
	m.card.ampere, m.card.processes = true, []mig.Process{{PID: 30, Instance: -1}}
	host.InUse = func(err error) bool { return errors.Is(err, errBusy) }
	err := host.Change(context.Background(), m.card, parsed(t, "on:1g.18gb@0:1"))
	if err == nil || !strings.HasSuffix(err.Error(), "held by pid 20 (program20), pid 22 (program22), pid 30 (unknown)") ||
		!strings.Contains(err.Error(), "MIG: mode is off>on instead of on, 1g.18gb@0:1 is missing: ") {
		t.Errorf("%v", err)
	}
	m.card.processes = nil
	if err := host.Change(context.Background(), m.card, parsed(t, "off")); err != nil || m.card.layout() != "off" {
		t.Errorf("%v, %s", err, m.card.layout())
	}
}

// TestStuck: a card whose mode waits for a reset is put back to not waiting, and
// one that waits already is refused.
func TestStuck(t *testing.T) {
	m := newMachine(t, "off")
	m.card.ampere, m.card.stuck = true, true
	err, _ := m.apply("on:1g.18gb@0:1")
	if err == nil || !strings.Contains(err.Error(), "waits for a reset") || m.card.layout() != "off" || m.held() {
		t.Errorf("%v, %s", err, m.card.layout())
	}
	m.card.mode.Next = true
	if _, err := mig.NewPlan(m.card, wants("1g.18gb"), true); err == nil || err.Error() != "gpu 0000:07:00.0: MIG mode is off>on: it waits for a reset of the GPU" {
		t.Error(err)
	}
}

// TestEnd: a deadline ends a change, and what it has done is taken back.
func TestEnd(t *testing.T) {
	m := newMachine(t, "off")
	ctx, cancel := context.WithCancel(context.Background())
	m.card.fails = func(name string, times int) failing {
		if name == "Create" && times == 1 {
			cancel()
		}
		return failing{}
	}
	m.program(func(l *ledger.Ledger, s setting.Setting) {
		_, err := l.Apply(ctx, "7", []ledger.Change{{Setting: s, Value: "on:1g.18gb@0:1,1g.18gb@1:1,1g.18gb@2:1"}})
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1g.18gb@2:1 is missing") || m.card.layout() != "off" || m.held() {
			t.Errorf("%v, %s", err, m.card.layout())
		}
	})
}

func TestPlan(t *testing.T) {
	c := newCard("on:2g.35gb@0:2")
	plan, err := mig.NewPlan(c, wants("1g.18gb:2+3g.71gb+1g.18gb"), false)
	if err != nil || plan.Layout.String() != "on:1g.18gb@0:1,1g.18gb@1:1,1g.18gb@2:1,3g.71gb@4:4" {
		t.Fatalf("%s, %v", plan.Layout, err)
	}
	if _, err := plan.Devices(c); err == nil || !strings.Contains(err.Error(), "MIG is on:2g.35gb@0:2 instead of on:1g") {
		t.Error(err)
	}
	if err := (mig.Host{}).Change(context.Background(), c, plan.Layout); err != nil {
		t.Fatal(err)
	}
	// As asked for, not by place.
	if got, err := plan.Devices(c); err != nil || fmt.Sprint(got) != "[MIG-16-0 MIG-17-0 MIG-68-0 MIG-18-0]" {
		t.Errorf("%v, %v", got, err)
	}

	// A card that is reset for its mode needs the site's word, unless the mode is on.
	for _, test := range []struct {
		layout        string
		ampere, reset bool
		refused       bool
	}{{"off", false, false, false}, {"off", true, false, true}, {"off", true, true, false}, {"on", true, false, false}} {
		c := newCard(test.layout)
		c.ampere = test.ampere
		if _, err := mig.NewPlan(c, wants("1g.18gb"), test.reset); (err != nil) != test.refused || err != nil && !errors.Is(err, mig.ErrReset) {
			t.Errorf("%+v: %v", test, err)
		}
		if c.calls != nil {
			t.Errorf("%+v: %q", test, c.calls)
		}
	}
}

// TestCheck: a value that the card cannot have is found before anything is
// changed.
func TestCheck(t *testing.T) {
	m := newMachine(t, "off")
	for value, want := range map[string]string{
		"on:4g.71gb@4:4": "gpu 0000:07:00.0: MIG on:4g.71gb@4:4: 4g.71gb@4:4: 4g.71gb can be at 0:4",
		"on:5g.1gb@0:1":  "5g.1gb: the GPU has 1g.18gb:7",
		"maybe":          `MIG mode "maybe": want on, off`,
	} {
		err, _ := m.apply(value)
		if err == nil || !strings.Contains(err.Error(), want) || m.card.calls != nil || m.held() {
			t.Errorf("%s: %v", value, err)
		}
	}
	env := setting.NewEnvironment(m.root, func() (setting.Devices, error) { return m, nil })
	_, err := setting.MIGPlan(env, uuid, wants("4g.71gb:2"), false)
	var value *setting.ValueError
	if !errors.As(err, &value) || err.Error() != "gpu 0000:07:00.0: MIG 4g.71gb:2: has room for 1" || value.Nearest != "4g.71gb" {
		t.Errorf("%v, %+v", err, value)
	}
}
