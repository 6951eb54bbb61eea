package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
	"gputune/internal/setting"
)

// killed is what a call panics with at the point where the program is killed.
type killed struct{}

// errFault is an error made by the test.
var errFault = errors.New("fault made by the test")

// points counts the places at which a program can be killed and does it at one
// of them. It can make errors at them instead.
type points struct {
	passed int
	killAt int // 0: never
	failAt int // 0: never; counted like killAt
	fail   error
	failed string // the place that failed
	dead   bool
}

// at is one such place.
func (p *points) at(name string) {
	if p.dead {
		panic("the program goes on after it was killed, at " + name)
	}
	p.passed++
	if p.passed == p.killAt {
		p.dead = true
		panic(killed{})
	}
}

// try is a place where something can fail as well.
func (p *points) try(name string) error {
	p.at(name)
	if p.passed == p.failAt {
		p.failed = name
		return fmt.Errorf("%s: %w", name, p.fail)
	}
	return nil
}

// run calls do and tells whether it was killed.
func (p *points) run(do func()) (wasKilled bool) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case killed:
			wasKilled = true
		default:
			panic(r)
		}
	}()
	do()
	return false
}

// machine is a set of values that outlive programs.
type machine struct {
	points *points
	values map[string]string
	broken map[string]string // key → what a write lands on, with an error
	dumb   map[string]bool   // keys whose writes fail without effect
	gone   map[string]bool   // keys that cannot be read or written
	writes map[string]int
}

// The fake settings' kinds are the last parts of their keys.
//
//	exact  a plain value
//	lock   write-only, neutral "free"
//	loose  rounds to even numbers, by way of the value "half"
//	kept   a plain value that outlives reboots
//	mig    loose and kept
func newMachine(p *points) *machine {
	return &machine{
		points: p, values: map[string]string{}, broken: map[string]string{},
		dumb: map[string]bool{}, gone: map[string]bool{}, writes: map[string]int{},
	}
}

func kindOf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// standard is the value of a key on a machine nobody has touched.
func standard(key string) string {
	if kindOf(key) == "lock" {
		return "free"
	}
	return "100"
}

func (m *machine) get(key string) string {
	if v, ok := m.values[key]; ok {
		return v
	}
	return standard(key)
}

// reboot is what a machine forgets.
func (m *machine) reboot() {
	maps.DeleteFunc(m.values, func(key, _ string) bool { return kindOf(key) != "kept" && kindOf(key) != "mig" })
}

func (m *machine) resolve(key string) (setting.Setting, error) {
	switch kindOf(key) {
	case "exact", "lock", "loose", "kept", "mig":
		return &fake{m, key}, nil
	}
	return nil, fmt.Errorf("%w: %s", setting.ErrUnknownKey, key)
}

func (m *machine) change(key, value string) Change {
	return Change{Setting: &fake{m, key}, Value: value}
}

// fake is one setting of a machine.
type fake struct {
	m   *machine
	key string
}

func (f *fake) Key() string { return f.key }

func (f *fake) Traits() setting.Traits {
	t := setting.Traits{Needs: setting.WholeGPU, Lifetime: setting.UntilReboot}
	switch kindOf(f.key) {
	case "lock":
		t.WriteOnly, t.Neutral = true, "free"
	case "loose":
		t.Loose = true
	case "kept":
		t.Lifetime = setting.Kept
	case "mig":
		t.Lifetime, t.Loose = setting.Kept, true
	}
	return t
}

func (f *fake) Check(_ context.Context, value string) (string, error) {
	if value == "" || value == "impossible" {
		return "", &setting.ValueError{Of: f.key, Value: value, Accepts: "a number"}
	}
	return value, nil
}

func (f *fake) Read(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := f.m.points.try("read " + f.key); err != nil {
		return "", err
	}
	if f.m.gone[f.key] {
		return "", setting.ErrGone
	}
	if f.Traits().WriteOnly {
		return "", setting.ErrWriteOnly
	}
	return f.m.get(f.key), nil
}

// rounded is what a loose setting makes of a value.
func rounded(key, value string) string {
	if k := kindOf(key); k != "loose" && k != "mig" {
		return value
	}
	var n int
	if _, err := fmt.Sscan(value, &n); err != nil {
		return value
	}
	return fmt.Sprint(n &^ 1)
}

func (f *fake) Write(ctx context.Context, value string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f.m.points.try("write " + f.key); err != nil {
		return err
	}
	if f.m.gone[f.key] {
		return setting.ErrGone
	}
	if f.m.dumb[f.key] {
		return setting.ErrDenied
	}
	f.m.writes[f.key]++
	if wrong, ok := f.m.broken[f.key]; ok {
		f.m.values[f.key] = wrong
		f.m.points.at("wrote wrongly " + f.key)
		return &setting.ReadBackError{Of: f.key, Wrote: value, Read: wrong}
	}
	if f.Traits().Loose {
		f.m.values[f.key] = "half"
		f.m.points.at("half of " + f.key)
	}
	f.m.values[f.key] = rounded(f.key, value)
	f.m.points.at("wrote " + f.key)
	return nil
}

// noLocks gives locks to the one program that there is, and sees to it that it
// gives them back and takes them in order.
type noLocks struct {
	t    testing.TB
	held map[string]bool
}

func (n *noLocks) take(name string) func() {
	if n.held[name] {
		n.t.Fatalf("lock of %s taken twice", name)
	}
	for other := range n.held {
		if strings.HasPrefix(name, "job ") || !strings.HasPrefix(other, "job ") && other > name {
			n.t.Fatalf("lock of %s taken after that of %s", name, other)
		}
	}
	n.held[name] = true
	return func() { delete(n.held, name) }
}

func (n *noLocks) job(_ context.Context, job string) (func(), error) {
	return n.take("job " + job), nil
}

func (n *noLocks) domain(_ context.Context, domain, _ string) (func(), error) {
	return n.take(domain), nil
}

func (n *noLocks) tryJob(job string) (func(), bool) {
	if n.held["job "+job] {
		return nil, false
	}
	n.held["job "+job] = true
	return func() { delete(n.held, "job "+job) }, true
}

// memory is a folder as a file system has it: what programs see, and what is
// left after a power cut. Names are durable once their folder is synced,
// contents once their file is. Whatever is not may or may not be there after a
// power cut, each change of a name by itself (or, as journalling file systems
// do, up to some change and none after), and unsynced contents may be cut off.
type memory struct {
	points *points
	now    tree
	base   tree    // what is durable for sure
	ops    []memOp // after base, in order
}

type inode struct {
	data    []byte
	durable []byte
}

// tree maps names to files; a nil file is a folder.
type tree map[string]*inode

type memOp struct {
	folders []string // in which it changes names
	do      func(tree)
	durable bool
}

func newMemory(p *points) *memory {
	return &memory{points: p, now: tree{"": nil}, base: tree{"": nil}}
}

func (m *memory) change(do func(tree), folders ...string) {
	do(m.now)
	m.ops = append(m.ops, memOp{folders: folders, do: do})
}

func parentOf(name string) string {
	if d := path.Dir(name); d != "." {
		return d
	}
	return ""
}

func (m *memory) missing(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: unix.ENOENT}
}

func (m *memory) MakeBase() error { return m.points.try("make the folder") }

func (m *memory) List(folder string) ([]string, error) {
	if node, ok := m.now[folder]; !ok || node != nil {
		return nil, m.missing("list", folder)
	}
	var names []string
	for name := range m.now {
		if name != "" && parentOf(name) == folder {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

func (m *memory) Read(name string) ([]byte, error) {
	node, ok := m.now[name]
	if !ok {
		return nil, m.missing("read", name)
	}
	if node == nil {
		return nil, folder.ErrForeign
	}
	return node.data, nil
}

func (m *memory) MakeFolder(name string) error {
	if err := m.points.try("mkdir " + name); err != nil {
		return err
	}
	if _, ok := m.now[name]; ok {
		return &fs.PathError{Op: "mkdir", Path: name, Err: unix.EEXIST}
	}
	m.change(func(t tree) { t[name] = nil }, parentOf(name))
	m.points.at("mkdir done " + name)
	return nil
}

func (m *memory) Create(name string) (folder.File, error) {
	if err := m.points.try("create " + name); err != nil {
		return nil, err
	}
	if _, ok := m.now[name]; ok {
		return nil, &fs.PathError{Op: "create", Path: name, Err: unix.EEXIST}
	}
	if _, ok := m.now[parentOf(name)]; !ok {
		return nil, m.missing("create", name)
	}
	node := &inode{}
	m.change(func(t tree) { t[name] = node }, parentOf(name))
	return &memFile{m, node}, nil
}

type memFile struct {
	m    *memory
	node *inode
}

func (f *memFile) Write(b []byte) (int, error) {
	if err := f.m.points.try("write file"); err != nil {
		f.node.data = append(f.node.data, b[:len(b)/3]...) // a disk that fills up
		return len(b) / 3, err
	}
	f.node.data = append(f.node.data, b[:len(b)/2]...)
	f.m.points.at("half of the file")
	f.node.data = append(f.node.data, b[len(b)/2:]...)
	f.m.points.at("file written")
	return len(b), nil
}

func (f *memFile) Sync() error {
	if err := f.m.points.try("fsync file"); err != nil {
		return err
	}
	f.node.durable = slices.Clone(f.node.data)
	f.m.points.at("file synced")
	return nil
}

func (f *memFile) Close() error { return f.m.points.try("close file") }

func (m *memory) Rename(from, to string) error {
	if err := m.points.try("rename " + from); err != nil {
		return err
	}
	if _, ok := m.now[from]; !ok {
		return m.missing("rename", from)
	}
	node := m.now[from]
	m.change(func(t tree) {
		if node == nil { // a folder takes what is in it along
			for name, inner := range maps.Clone(t) {
				if rest, ok := strings.CutPrefix(name, from+"/"); ok {
					delete(t, name)
					t[to+"/"+rest] = inner
				}
			}
		}
		delete(t, from)
		t[to] = node
	}, parentOf(from), parentOf(to))
	m.points.at("renamed " + from)
	return nil
}

func (m *memory) Remove(name string) error {
	node, ok := m.now[name]
	if !ok {
		return m.missing("remove", name)
	}
	if err := m.points.try("remove " + name); err != nil {
		return err
	}
	if node == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: unix.EISDIR}
	}
	m.change(func(t tree) { delete(t, name) }, parentOf(name))
	m.points.at("removed " + name)
	return nil
}

func (m *memory) RemoveFolder(name string) error {
	if _, ok := m.now[name]; !ok {
		return m.missing("rmdir", name)
	}
	if err := m.points.try("rmdir " + name); err != nil {
		return err
	}
	if names, err := m.List(name); err != nil || len(names) > 0 {
		return &fs.PathError{Op: "rmdir", Path: name, Err: unix.ENOTEMPTY}
	}
	m.change(func(t tree) {
		for inner := range maps.Clone(t) { // a folder that is gone has no names in it
			if strings.HasPrefix(inner, name+"/") {
				delete(t, inner)
			}
		}
		delete(t, name)
	}, parentOf(name), name)
	m.points.at("rmdir done " + name)
	return nil
}

func (m *memory) SyncFolder(name string) error {
	if err := m.points.try("fsync " + name); err != nil {
		return err
	}
	if _, ok := m.now[name]; !ok {
		return m.missing("fsync", name)
	}
	for i := range m.ops {
		if slices.Contains(m.ops[i].folders, name) {
			m.ops[i].durable = true
		}
	}
	for len(m.ops) > 0 && m.ops[0].durable {
		m.ops[0].do(m.base)
		m.ops = m.ops[1:]
	}
	m.points.at("folder synced " + name)
	return nil
}

// powerCut leaves what a disk has after one. ordered keeps the changes of names
// up to some change; otherwise each may be lost by itself.
func (m *memory) powerCut(random *rand.Rand, ordered bool) {
	t := maps.Clone(m.base)
	upTo := random.IntN(len(m.ops) + 1)
	for i, op := range m.ops {
		survives := op.durable
		if ordered {
			survives = survives || i < upTo
		} else {
			survives = survives || random.IntN(2) == 0
		}
		if survives {
			op.do(t)
		}
	}
	m.reset(t, random)
}

// reset makes t what is on disk. Names without their folders are lost, and
// contents that were not synced are cut at any place.
func (m *memory) reset(t tree, random *rand.Rand) {
	for name := range maps.Clone(t) {
		for d := name; d != ""; d = parentOf(d) {
			if _, ok := t[parentOf(d)]; !ok {
				delete(t, name)
				break
			}
		}
	}
	for name, node := range t {
		if node == nil {
			continue
		}
		data := node.durable
		if len(node.data) > len(data) && random != nil {
			data = node.data[:len(data)+random.IntN(len(node.data)-len(data)+1)]
		}
		t[name] = &inode{data: slices.Clone(data), durable: slices.Clone(data)}
	}
	m.now, m.base, m.ops = t, maps.Clone(t), nil
}

// left lists what is in the folders of records.
func (m *memory) left() []string {
	var names []string
	for name := range m.now {
		if strings.HasPrefix(name, jobsFolder+"/") || strings.HasPrefix(name, asideFolder+"/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// world is a machine with a ledger, both of which outlive programs.
type world struct {
	t       testing.TB
	points  *points
	machine *machine
	disk    *memory
	boot    int
}

func newWorld(t testing.TB) *world {
	p := &points{}
	return &world{t: t, points: p, machine: newMachine(p), disk: newMemory(p)}
}

// program starts a new program that is killed at a place, 0 for never.
func (w *world) program(killAt int) *Ledger {
	*w.points = points{killAt: killAt}
	return w.open()
}

func (w *world) open() *Ledger {
	l, err := Open("ledger", Options{
		BootID: fmt.Sprintf("boot-%d", w.boot), Resolve: w.machine.resolve,
		Now:   func() time.Time { return time.Unix(1700000000, 0) },
		files: w.disk, locks: &noLocks{t: w.t, held: map[string]bool{}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// reboot is a power cut, or a reboot with synced disks.
func (w *world) reboot(random *rand.Rand, power, ordered bool) {
	if power {
		w.disk.powerCut(random, ordered)
	}
	w.machine.reboot()
	w.boot++
}

func nobody(string) bool { return false }

// settle ends all jobs, with a program that nothing kills.
func (w *world) settle() {
	w.t.Helper()
	if _, err := w.program(0).ReleaseAll(context.Background(), nobody); err != nil {
		w.t.Fatalf("ReleaseAll: %v", err)
	}
	if left := w.disk.left(); len(left) > 0 {
		w.t.Fatalf("left in the ledger: %v", left)
	}
}
