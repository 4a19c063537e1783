// Package kmod indexes Linux kernel modules, works out what must be loaded in which order, and loads it.
//
// Indexing and resolving work on an fs.FS with .ko, .ko.xz and .ko.zst files and need neither depmod nor the kernel
// that the modules are for; loading needs Linux and CAP_SYS_MODULE. It never unloads a module. Start with ReadIndex and
// Index.Closure on the building side, NewLoader on a node.
package kmod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Module is one kernel module.
type Module struct {
	// Name has underscores where a file name may have hyphens: "virtio_net".
	Name string
	// File is the path below the modules folder: "kernel/drivers/net/virtio_net.ko.xz".
	File string

	once sync.Once
	info Modinfo
	err  error
}

// Index is all modules of one kernel. Files are read when something about them is asked for, and once.
type Index struct {
	// Modules is sorted by File.
	Modules []*Module
	// Builtin maps the names of what is built into the kernel to the paths that modules.builtin has for them.
	Builtin map[string]string

	fsys   fs.FS // where Modules were found
	byName map[string]*Module
}

// Name turns a module's file name or a name as people write it into the kernel's: "kernel/x/virtio-net.ko.xz" to
// "virtio_net".
func Name(s string) string {
	s = path.Base(s)
	if i := strings.Index(s, ".ko"); i > 0 {
		s = s[:i]
	}
	return strings.ReplaceAll(s, "-", "_")
}

func isModule(file string) bool {
	for _, end := range []string{".ko", ".ko.xz", ".ko.zst"} {
		if strings.HasSuffix(file, end) {
			return true
		}
	}
	return false
}

// ReadIndex lists every module in fsys, whose root is the folder that has modules.builtin ("lib/modules/KVER").
// Two modules of one name are an error.
func ReadIndex(ctx context.Context, fsys fs.FS) (*Index, error) {
	x := &Index{Builtin: map[string]string{}, fsys: fsys, byName: map[string]*Module{}}
	lines, err := readList(fsys, "modules.builtin")
	if err != nil {
		return nil, fmt.Errorf("index kernel modules: %w", err)
	}
	for _, l := range lines {
		x.Builtin[Name(l)] = l
	}
	err = fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || d.IsDir() || !isModule(p) {
			return err
		}
		m := &Module{Name: Name(p), File: p}
		if old := x.byName[m.Name]; old != nil {
			return fmt.Errorf("the module %s is there twice: %s and %s", m.Name, old.File, p)
		}
		x.byName[m.Name] = m
		x.Modules = append(x.Modules, m)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("index kernel modules: %w", err)
	}
	return x, nil
}

// Modinfo reads what m says about itself.
func (x *Index) Modinfo(m *Module) (Modinfo, error) {
	m.once.Do(func() {
		r, err := Open(x.fsys, m.File)
		if err != nil {
			m.err = err
			return
		}
		defer r.Close()
		if m.info, m.err = ReadModinfo(r); m.err != nil {
			m.err = fmt.Errorf("%s: %w", m.File, m.err)
		}
	})
	return m.info, m.err
}

// readAll reads the modinfo of all modules, on all processors.
func (x *Index) readAll(ctx context.Context) error {
	work := make(chan *Module)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for m := range work {
				if _, err := x.Modinfo(m); err != nil && errs[i] == nil {
					errs[i] = err
				}
			}
		}()
	}
	for _, m := range x.Modules {
		if ctx.Err() != nil {
			break
		}
		work <- m
	}
	close(work)
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// Match returns the modules whose aliases match modalias ("pci:v00001AF4d..."), sorted by name. It reads every module.
func (x *Index) Match(ctx context.Context, modalias string) ([]*Module, error) {
	if err := x.readAll(ctx); err != nil {
		return nil, fmt.Errorf("look for a module for %q: %w", modalias, err)
	}
	var out []*Module
	for _, m := range x.Modules {
		if slices.ContainsFunc(m.info.Aliases, func(a string) bool { return matchAlias(a, modalias) }) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *Module) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Closure returns the named modules and all that they need, each after what it needs; soft dependencies count where
// they exist. A name may have hyphens or underscores. Built-in names need nothing and are left out; one that is
// neither is an error that names who asked for it.
func (x *Index) Closure(ctx context.Context, names ...string) ([]*Module, error) {
	c := closure{ctx: ctx, x: x, state: map[string]int{}}
	for _, n := range names {
		if err := c.need(Name(n), "the list", false); err != nil {
			return nil, fmt.Errorf("resolve kernel modules: %w", err)
		}
	}
	return c.out, nil
}

type closure struct {
	ctx   context.Context
	x     *Index
	state map[string]int // 1 under way, 2 done
	out   []*Module
}

func (c *closure) need(name, by string, soft bool) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	m := c.x.byName[name]
	if m == nil {
		if _, ok := c.x.Builtin[name]; ok || soft {
			return nil
		}
		return fmt.Errorf("there is no module %q, which %s asks for; it is neither among the modules of this kernel nor built in", name, by)
	}
	switch c.state[name] {
	case 1:
		if soft {
			return nil // soft dependencies may be circular
		}
		return fmt.Errorf("the modules %q and %q need each other", name, by)
	case 2:
		return nil
	}
	c.state[name] = 1
	info, err := c.x.Modinfo(m)
	if err != nil {
		return err
	}
	for _, d := range info.Pre {
		if err := c.need(Name(d), name, true); err != nil {
			return err
		}
	}
	for _, d := range info.Depends {
		if err := c.need(Name(d), name, false); err != nil {
			return err
		}
	}
	c.state[name] = 2
	c.out = append(c.out, m)
	for _, d := range info.Post {
		if err := c.need(Name(d), name, true); err != nil {
			return err
		}
	}
	return nil
}

// Open opens a module of fsys, decompressed by the ending of its name.
func (x *Index) Open(m *Module) (io.ReadCloser, error) { return Open(x.fsys, m.File) }
