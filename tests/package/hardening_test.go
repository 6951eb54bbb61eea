//go:build packages

package packages

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// installed unpacks the deb.
func installed(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	must(t, exec.Command("dpkg-deb", "-x", made(t, first).deb, folder))
	return folder
}

// object is what the dynamic linker reads of a file.
type object struct {
	*elf.File
	flags, flags1      elf.DynFlag
	imported, exported []string
}

func open(t *testing.T, path string) object {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	o := object{File: file}
	value := func(tag elf.DynTag) elf.DynFlag {
		values, err := file.DynValue(tag)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(values) == 0 {
			return 0
		}
		return elf.DynFlag(values[0])
	}
	o.flags, o.flags1 = value(elf.DT_FLAGS), value(elf.DT_FLAGS_1)
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range symbols {
		switch {
		case symbol.Section == elf.SHN_UNDEF:
			o.imported = append(o.imported, symbol.Name)
		case elf.ST_BIND(symbol.Info) != elf.STB_LOCAL:
			o.exported = append(o.exported, symbol.Name)
		}
	}
	slices.Sort(o.exported)
	return o
}

const (
	flagBindNow   = 0x8 // DF_BIND_NOW of DT_FLAGS
	flag1Now      = 0x1 // of DT_FLAGS_1
	flag1NoDelete = 0x8
	flag1PIE      = 0x08000000
)

// wantHardened fails the test unless no memory of the file is both writable and
// executable and what the linker has written is read-only afterwards.
func (o object) wantHardened(t *testing.T) {
	t.Helper()
	stack, relro := false, false
	for _, part := range o.Progs {
		switch part.Type {
		case elf.PT_GNU_STACK:
			stack = part.Flags&elf.PF_X == 0
		case elf.PT_GNU_RELRO:
			relro = true
		case elf.PT_LOAD:
			if part.Flags&(elf.PF_W|elf.PF_X) == elf.PF_W|elf.PF_X {
				t.Errorf("memory at %#x is writable and executable", part.Vaddr)
			}
		}
	}
	if !stack {
		t.Error("the stack is executable")
	}
	if !relro {
		t.Error("no relro")
	}
	if o.Type != elf.ET_DYN {
		t.Errorf("type %v: want one that can be at any address", o.Type)
	}
	if text, err := o.DynValue(elf.DT_TEXTREL); err != nil || len(text) > 0 {
		t.Errorf("code has relocations: %v, %v", text, err)
	}
	for _, path := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if values, err := o.DynString(path); err != nil || len(values) > 0 {
			t.Errorf("%v: %v, %v: want none", path, values, err)
		}
	}
}

// wantBoundNow fails the test for a library that can look functions up later, or
// be unloaded.
func (o object) wantBoundNow(t *testing.T) {
	t.Helper()
	if o.flags&flagBindNow == 0 || o.flags1&flag1Now == 0 {
		t.Errorf("flags %#x, %#x: not bound when it is loaded", o.flags, o.flags1)
	}
	if o.flags1&flag1NoDelete == 0 {
		t.Errorf("flags %#x: can be unloaded", o.flags1)
	}
}

// wantGuarded fails the test unless C code has guards on its stack and the
// checked forms of the C library's functions.
func (o object) wantGuarded(t *testing.T) {
	t.Helper()
	if !slices.Contains(o.imported, "__stack_chk_fail") {
		t.Error("no stack protector")
	}
	if !slices.ContainsFunc(o.imported, func(name string) bool { return strings.HasSuffix(name, "_chk") }) {
		t.Errorf("no fortified function among %v", o.imported)
	}
}

func TestShimsAreHardened(t *testing.T) {
	folder := installed(t)
	exports := []string{
		"plugin_name", "plugin_type", "plugin_version", "slurm_spank_exit", "slurm_spank_init",
		"slurm_spank_init_post_opt", "slurm_spank_task_init", "slurm_spank_task_post_fork",
	}
	for _, release := range slurmReleases(t) {
		t.Run(release, func(t *testing.T) {
			o := open(t, filepath.Join(folder, "usr/lib/gputune/slurm-"+release, "spank_gputune.so"))
			o.wantHardened(t)
			o.wantBoundNow(t)
			o.wantGuarded(t)
			if !slices.Equal(o.exported, exports) {
				t.Errorf("exports %v, want %v", o.exported, exports)
			}
			if needed, err := o.ImportedLibraries(); err != nil || !slices.Equal(needed, []string{"libc.so.6"}) {
				t.Errorf("needs %v, %v: want the C library alone", needed, err)
			}
		})
	}
}

func TestCoreIsHardened(t *testing.T) {
	o := open(t, filepath.Join(installed(t), "usr/lib/gputune/libgputune.so"))
	o.wantHardened(t)
	o.wantBoundNow(t)
	o.wantGuarded(t)
	if want := []string{"gputune_core_bind", "gputune_core_limit", "gputune_core_locate", "gputune_core_open"}; !slices.Equal(o.exported, want) {
		t.Errorf("exports %v, want %v", o.exported, want)
	}
}

func TestProgramsAreHardened(t *testing.T) {
	folder := installed(t)
	for _, name := range []string{"usr/bin/gputune", "usr/sbin/gputune-prolog", "usr/sbin/gputune-epilog"} {
		t.Run(name, func(t *testing.T) {
			o := open(t, filepath.Join(folder, name))
			o.wantHardened(t)
			o.wantGuarded(t)
			if o.flags1&flag1PIE == 0 {
				t.Errorf("flags %#x: no position-independent executable", o.flags1)
			}
		})
	}
}

// The package says that it needs glibc 2.34.
func TestGlibc(t *testing.T) {
	folder := installed(t)
	files, err := filepath.Glob(filepath.Join(folder, "usr/lib/gputune/*/*.so"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr/bin/gputune", "usr/sbin/gputune-prolog", "usr/sbin/gputune-epilog", "usr/lib/gputune/libgputune.so"} {
		files = append(files, filepath.Join(folder, name))
	}
	for _, path := range files {
		symbols, err := open(t, path).ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, symbol := range symbols {
			if version, found := strings.CutPrefix(symbol.Version, "GLIBC_2."); found && len(version) == 2 && version > "34" {
				t.Errorf("%s needs %s of %s", strings.TrimPrefix(path, folder), symbol.Name, symbol.Version)
			}
		}
	}
}
