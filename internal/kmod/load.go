package kmod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Loader loads modules from a folder that has modules.dep, modules.alias, modules.softdep and modules.builtin
// (written from Index.Lists, or by depmod). Missing lists count as empty. It is safe for concurrent use.
type Loader struct {
	fsys    fs.FS
	deps    map[string][]string // file -> files that it needs
	files   map[string]string   // name -> file
	builtin map[string]bool
	soft    map[string]Modinfo // name -> Pre and Post
	aliases map[string][]alias // by what stands before the first ":"
	insert  func(fsys fs.FS, file string) error

	mu     sync.Mutex
	loaded map[string]error // by name; what became of each one tried
}

type alias struct{ pattern, name string }

// NewLoader reads the lists in fsys, whose root is "/usr/lib/modules/KVER".
func NewLoader(fsys fs.FS) (*Loader, error) {
	l := &Loader{
		fsys: fsys, deps: map[string][]string{}, files: map[string]string{}, builtin: map[string]bool{},
		soft: map[string]Modinfo{}, aliases: map[string][]alias{}, insert: insert, loaded: map[string]error{},
	}
	for list, add := range map[string]func(line string){
		"modules.dep": func(line string) {
			file, deps, ok := strings.Cut(line, ":")
			if ok {
				l.files[Name(file)] = file
				l.deps[file] = strings.Fields(deps)
			}
		},
		"modules.builtin": func(line string) { l.builtin[Name(line)] = true },
		"modules.alias": func(line string) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "alias" {
				k := bus(f[1])
				l.aliases[k] = append(l.aliases[k], alias{f[1], Name(f[2])})
			}
		},
		"modules.softdep": func(line string) {
			f := strings.SplitN(line, " ", 3)
			if len(f) == 3 && f[0] == "softdep" {
				m := l.soft[Name(f[1])]
				m.addSoftdep(f[2])
				l.soft[Name(f[1])] = m
			}
		},
	} {
		lines, err := readList(fsys, list)
		if err != nil {
			return nil, fmt.Errorf("read lists of kernel modules: %w", err)
		}
		for _, line := range lines {
			add(line)
		}
	}
	return l, nil
}

// bus is the part of a modalias that must be the same in its pattern: "pci" of "pci:v*". Empty for what has none.
func bus(s string) string {
	b, _, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(b, "*?[") {
		return ""
	}
	return b
}

// Load loads the named modules, or those with such an alias, and what they need. Built-in and already loaded ones are
// fine. All names are tried; the error joins what went wrong with each.
func (l *Loader) Load(ctx context.Context, names ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		targets := []string{Name(n)}
		if !l.known(Name(n)) {
			targets = l.match(n)
		}
		if len(targets) == 0 {
			errs = append(errs, fmt.Errorf("load kernel module %s: there is none of that name or alias in this image", n))
		}
		for _, t := range targets {
			if err := l.load(t, 0); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (l *Loader) known(name string) bool { return l.files[name] != "" || l.builtin[name] }

// match returns the names of modules for a modalias, sorted.
func (l *Loader) match(modalias string) []string {
	var out []string
	for _, k := range slices.Compact([]string{"", bus(modalias)}) {
		for _, a := range l.aliases[k] {
			if matchAlias(a.pattern, modalias) {
				out = append(out, a.name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxDepth bounds the nesting of dependencies, so that lists which point at themselves end.
const maxDepth = 64

func (l *Loader) load(name string, depth int) error {
	file := l.files[name]
	if file == "" || depth > maxDepth {
		return nil // built in, or a soft dependency that is not there
	}
	if err, tried := l.loaded[name]; tried {
		return err
	}
	l.loaded[name] = nil // against circles; set for good below
	for _, s := range l.soft[name].Pre {
		_ = l.load(Name(s), depth+1) // soft: the module loads without it
	}
	err := l.loadDeps(file, depth)
	if err == nil {
		err = l.insert(l.fsys, file)
	}
	if err != nil {
		err = fmt.Errorf("load kernel module %s: %w", name, err)
	}
	l.loaded[name] = err
	for _, s := range l.soft[name].Post {
		_ = l.load(Name(s), depth+1)
	}
	return err
}

func (l *Loader) loadDeps(file string, depth int) error {
	// What must be loaded first comes last.
	for _, d := range slices.Backward(l.deps[file]) {
		if err := l.load(Name(d), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// maxRounds bounds how often new devices are looked for: a bus, its controllers, what hangs on them, and once more.
const maxRounds = 4

// LoadByModalias loads a module for every device that sys ("/sys" as fs.FS) shows and for which there is one.
// It looks again as long as new devices appear, at most four times, and returns the names that were loaded. A device
// whose module fails to load does not stop the others; the error joins the failures. A module that finds no
// hardware to drive (ENODEV) is no failure.
func (l *Loader) LoadByModalias(ctx context.Context, sys fs.FS) ([]string, error) {
	seen := map[string]bool{}
	var names []string
	var errs []error
	for range maxRounds {
		fresh, err := modaliases(ctx, sys, seen)
		if err != nil {
			return names, errors.Join(append(errs, err)...)
		}
		if len(fresh) == 0 {
			break
		}
		l.mu.Lock()
		for _, a := range fresh {
			for _, n := range l.match(a) {
				if _, tried := l.loaded[n]; tried || l.files[n] == "" {
					continue
				}
				err := l.load(n, 0)
				switch {
				case err == nil:
					names = append(names, n)
				case !errors.Is(err, unix.ENODEV):
					errs = append(errs, err)
				}
			}
		}
		l.mu.Unlock()
	}
	return names, errors.Join(errs...)
}

// modaliases returns the modaliases below devices that are not in seen yet, sorted, and adds them to it.
func modaliases(ctx context.Context, sys fs.FS, seen map[string]bool) ([]string, error) {
	var out []string
	err := fs.WalkDir(sys, "devices", func(p string, d fs.DirEntry, err error) error {
		if e := ctx.Err(); e != nil {
			return e
		}
		if err != nil || d.IsDir() || d.Name() != "modalias" {
			return nil // a device that went away while we look is no error
		}
		b, err := fs.ReadFile(sys, p)
		if a := strings.TrimSpace(string(b)); err == nil && a != "" && !seen[a] {
			seen[a] = true
			out = append(out, a)
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

// LoadFiles loads the module files in fsys in that order: the initrd's /modules/load. Already loaded ones are fine.
// All are tried; the error joins what went wrong with each.
func LoadFiles(ctx context.Context, fsys fs.FS, files []string) error {
	var errs []error
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := insert(fsys, f); err != nil {
			errs = append(errs, fmt.Errorf("load kernel module %s: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

// insert loads one file; one that is loaded already is fine. The kernel would only say so after it has checked the
// signature, a tenth of a second in an emulated machine, so it is asked first.
func insert(fsys fs.FS, file string) error {
	if state, err := os.ReadFile("/sys/module/" + Name(file) + "/initstate"); err == nil && strings.TrimSpace(string(state)) == "live" {
		return nil
	}
	err := insertFile(fsys, file)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// parameters are what a module is loaded with. Only one needs any: bonding makes a bond of its own, with a mode that nobody
// asked for, under the very name that people give theirs.
func parameters(name string) string {
	if name == "bonding" {
		return "max_bonds=0"
	}
	return ""
}

func insertFile(fsys fs.FS, file string) error {
	if strings.HasSuffix(file, ".ko") {
		f, err := fsys.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		if of, ok := f.(*os.File); ok {
			return unix.FinitModule(int(of.Fd()), parameters(Name(file)), 0)
		}
	}
	// Decompressed here rather than by the kernel: not every kernel can (CONFIG_MODULE_DECOMPRESS).
	r, err := Open(fsys, file)
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return unix.InitModule(b, parameters(Name(file)))
}
