package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
)

// newStore returns one in a folder that every user can get to.
func newStore(t *testing.T) Store {
	t.Helper()
	top, err := os.MkdirTemp("", "reports-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	return NewStore(filepath.Join(top, "reports"))
}

// closed is a report on a job that ended so long after the beginning.
func closed(uid uint32, job string, ended time.Duration) *Report {
	b := begun()
	b.Job, b.UID = job, uid
	r := New(b, []Device{{UUID: "GPU-a"}}, time.Second)
	r.Close(Ended, begin.Add(ended))
	return r
}

func put(t *testing.T, s Store, r *Report) {
	t.Helper()
	if err := s.Put(r); err != nil {
		t.Fatal(err)
	}
}

func jobs(t *testing.T, s Store, uid uint32) string {
	t.Helper()
	list, err := s.List(uid)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Job)
	}
	return strings.Join(all, " ")
}

func TestStore(t *testing.T) {
	s := newStore(t)
	if users, err := s.Users(); err != nil || len(users) > 0 {
		t.Errorf("%v, %v", users, err)
	}
	put(t, s, closed(0, "10", time.Minute))
	put(t, s, closed(0, "9", time.Minute))
	put(t, s, closed(0, "10", time.Hour)) // a second run
	put(t, s, closed(0, "10", time.Hour))
	if got := jobs(t, s, 0); got != "9 10 10" {
		t.Errorf("%s", got)
	}
	list, _ := s.List(0)
	r, err := s.Get(list[2])
	if err != nil || r.Length() != time.Hour || r.Job != "10" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := errors.Join(s.Drop(list[2]), s.Drop(list[2])); err != nil {
		t.Error(err)
	}
	if got := jobs(t, s, 0); got != "9 10" {
		t.Errorf("%s", got)
	}
	if _, err := s.Get(list[2]); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := s.Put(&Report{Job: "../../x"}); err == nil {
		t.Error("a job that is no number")
	}
}

// Each user reads his own reports and nobody else's, and can change, remove or link
// none.
func TestUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root writes for others")
	}
	s := newStore(t)
	err := s.Put(closed(1001, "11", time.Minute))
	if errors.Is(err, folder.ErrNoACL) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, closed(1002, "12", time.Minute))
	put(t, s, closed(1001, "13", time.Minute))
	own, other := filepath.Join(s.Dir, "1001"), filepath.Join(s.Dir, "1002")
	names, err := os.ReadDir(own)
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	file := filepath.Join(own, names[0].Name())
	as := func(uid uint32, script string) error {
		command := exec.Command("/bin/sh", "-c", script)
		command.Dir = "/"
		// His primary group is that of the other, too.
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 0}}
		return command.Run()
	}
	if err := as(1001, "cat "+file+" && ls "+own); err != nil {
		t.Errorf("he cannot read his own: %v", err)
	}
	for _, script := range []string{
		"ls " + other, "cat " + other + "/*", "echo >>" + file, "rm -f " + file + " && ! test -e " + file, "touch " + own + "/x", "ln " + file + " " + own + "/y",
		"chmod 777 " + own, "chmod 666 " + file, "mv " + own + " " + s.Dir + "/z", "mkdir " + s.Dir + "/z",
	} {
		if err := as(1001, script); err == nil {
			t.Errorf("user 1001 can: %s", script)
		}
	}
	if err := as(1002, "cat "+file); err == nil {
		t.Error("user 1002 reads it")
	}
}

// Whatever stands where a report or a folder should be is not followed, read or
// written to.
func TestHostile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root makes devices and other users' files")
	}
	outside := filepath.Join(t.TempDir(), "outside")
	text, err := closed(0, "7", 0).encode()
	if err != nil {
		t.Fatal(err)
	}
	name := closed(0, "7", 0).entry().name() + ".json"
	for what, place := range map[string]func(s Store) error{
		"link":      func(s Store) error { return os.Symlink(outside, filepath.Join(s.Dir, name)) },
		"hard link": func(s Store) error { return os.Link(outside, filepath.Join(s.Dir, name)) },
		"pipe":      func(s Store) error { return unix.Mkfifo(filepath.Join(s.Dir, name), 0o644) },
		"folder":    func(s Store) error { return os.Mkdir(filepath.Join(s.Dir, name), 0o755) },
		"device":    func(s Store) error { return unix.Mknod(filepath.Join(s.Dir, name), unix.S_IFCHR|0o644, 5) },
		"huge":      func(s Store) error { return os.WriteFile(filepath.Join(s.Dir, name), make([]byte, MaxBytes+1), 0o644) },
		"garbage":   func(s Store) error { return os.WriteFile(filepath.Join(s.Dir, name), []byte("{"), 0o644) },
		"other's": func(s Store) error {
			return errors.Join(os.WriteFile(filepath.Join(s.Dir, name), text, 0o644), os.Chown(filepath.Join(s.Dir, name), 1001, 0))
		},
		"for all": func(s Store) error {
			return errors.Join(os.WriteFile(filepath.Join(s.Dir, name), text, 0o644), os.Chmod(filepath.Join(s.Dir, name), 0o666))
		},
		"another job": func(s Store) error {
			other, _ := closed(0, "8", 0).encode()
			return os.WriteFile(filepath.Join(s.Dir, name), other, 0o644)
		},
		"another user": func(s Store) error {
			other, _ := closed(5, "7", 0).encode()
			return os.WriteFile(filepath.Join(s.Dir, name), other, 0o644)
		},
		"folder link": func(s Store) error {
			return errors.Join(os.Remove(filepath.Join(s.Dir, "0")), os.Symlink(filepath.Dir(outside), filepath.Join(s.Dir, "0")))
		},
		"open folder": func(s Store) error {
			return errors.Join(os.WriteFile(filepath.Join(s.Dir, name), text, 0o644), os.Chmod(filepath.Join(s.Dir, "0"), 0o777))
		},
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.WriteFile(outside, text, 0o644); err != nil {
				t.Fatal(err)
			}
			s := newStore(t)
			if err := errors.Join(os.Mkdir(s.Dir, 0o755), os.Mkdir(filepath.Join(s.Dir, "0"), 0o700), place(s)); err != nil {
				t.Fatal(err)
			}
			if r, err := s.Get(closed(0, "7", 0).entry()); err == nil {
				t.Errorf("read %+v", r)
			}
			_ = s.Put(closed(0, "7", 0)) // it may replace what is in its place, or refuse
			after, err := os.ReadFile(outside)
			if err != nil || string(after) != string(text) {
				t.Errorf("what is outside is %q, %v", after, err)
			}
			if entries, err := os.ReadDir(filepath.Dir(outside)); err != nil || len(entries) != 1 {
				t.Errorf("outside are %v, %v", entries, err)
			}
		})
	}
}

// What is too old and too much goes, and nobody's many jobs cost others theirs.
func TestPrune(t *testing.T) {
	s := newStore(t)
	now := begin.Add(40 * 24 * time.Hour)
	day := func(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }
	for i := range 10 {
		put(t, s, closed(0, fmt.Sprint(100+i), day(30+i)))
	}
	for i := range 3 {
		put(t, s, closed(1001, fmt.Sprint(200+i), day(20+i)))
	}
	put(t, s, closed(1002, "300", day(1)))
	if err := os.WriteFile(filepath.Join(s.Dir, "0", fmt.Sprintf("5-%d.new", begin.Unix())), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, foreign := range []string{"0/notes", "x", "0/5-07.json", "0/0-7.json"} {
		if err := os.WriteFile(filepath.Join(s.Dir, foreign), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	prune := func(limits Limits, removed int, root, one string) {
		t.Helper()
		got, err := s.Prune(now, limits)
		if err != nil || got != removed || jobs(t, s, 0) != root || jobs(t, s, 1001) != one {
			t.Errorf("removed %d, %v: %s; %s", got, err, jobs(t, s, 0), jobs(t, s, 1001))
		}
	}
	prune(Limits{Age: day(30), All: 100, PerUser: 100}, 1, "100 101 102 103 104 105 106 107 108 109", "200 201 202")
	if _, err := os.Stat(filepath.Join(s.Dir, "1002")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the folder of a user without reports stays")
	}
	prune(Limits{Age: day(30), All: 100, PerUser: 8}, 2, "102 103 104 105 106 107 108 109", "200 201 202")
	prune(Limits{Age: day(30), All: 6, PerUser: 8}, 5, "107 108 109", "200 201 202")
	prune(Limits{Age: day(19), All: 6, PerUser: 8}, 1, "107 108 109", "201 202")
	prune(Limits{Age: day(19), All: 1, PerUser: 8}, 4, "", "202")
	entries, err := os.ReadDir(filepath.Join(s.Dir, "0"))
	if err != nil || len(entries) != 3 { // what is not gputune's
		t.Errorf("%v, %v", entries, err)
	}
}

func TestMarks(t *testing.T) {
	m := NewMarks(filepath.Join(t.TempDir(), "run"))
	if list, err := m.All(); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := m.Get("4711"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	b := begun()
	b.Environ = []string{"SLURM_JOB_GPUS=0"}
	for range 2 {
		if err := m.Put(b); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.Get("4711")
	if err != nil || got.Job != b.Job || !got.Time.Equal(b.Time) || len(got.Environ) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{"12.json": `{"job":"13"}`, "14.json": "x", "15.new": "", "x.json": "{}"} {
		if err := os.WriteFile(filepath.Join(m.Dir, marksFolder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := m.All()
	if err != nil || len(list) != 3 {
		t.Errorf("%v, %v", list, err)
	}
	for _, job := range []string{"12", "14"} {
		if _, err := m.Get(job); !errors.Is(err, folder.ErrForeign) {
			t.Errorf("%s: %v", job, err)
		}
	}
	for _, job := range []string{"4711", "12", "14", "15", "16"} {
		if err := m.Drop(job); err != nil {
			t.Error(err)
		}
	}
	if list, err := m.All(); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}
