package initrd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"kingpost/internal/kmod"
)

// drivers are the kernel modules in the initrd. Loading one costs an emulated machine 50 ms, and most of them are for
// hardware that is not there: so a module that drives devices is loaded only once there is one for it.
type drivers struct {
	fsys fs.FS  // the folder that has load and the module files
	bus  string // /sys/bus
	load func(ctx context.Context, file string) error

	all    []*driver // in the order of the list: what a module needs comes before it
	byName map[string]*driver
	seen   map[string]bool // modaliases that were looked at
}

type driver struct {
	name, file string
	info       kmod.Modinfo
	hardware   []string // modalias patterns of the devices that it drives
	needed     bool     // by another one in the list, so it is loaded when that one is
	loaded     bool
}

func newDrivers(fsys fs.FS, bus string) (*drivers, error) {
	d := &drivers{
		fsys: fsys, bus: bus, byName: map[string]*driver{}, seen: map[string]bool{},
		load: func(ctx context.Context, file string) error { return kmod.LoadFiles(ctx, fsys, []string{file}) },
	}
	b, err := fs.ReadFile(fsys, "load")
	if err != nil {
		return nil, fmt.Errorf("read the list of kernel modules: %w", err)
	}
	lists, err := readLists(fsys)
	if err != nil {
		return nil, err
	}
	for _, file := range strings.Fields(string(b)) {
		m := &driver{name: kmod.Name(file), file: file, info: lists[kmod.Name(file)]}
		if lists == nil {
			if f, err := fsys.Open(file); err == nil {
				// One that cannot be read here is loaded like one that drives nothing, and its loading says why not.
				m.info, _ = kmod.ReadModinfo(f)
				f.Close()
			}
		}
		for _, a := range m.info.Aliases {
			if isHardware(a) {
				m.hardware = append(m.hardware, a)
			}
		}
		d.all = append(d.all, m)
		d.byName[m.name] = m
	}
	for _, m := range d.all {
		for _, n := range m.info.Depends {
			if o := d.byName[kmod.Name(n)]; o != nil {
				o.needed = true
			}
		}
	}
	return d, nil
}

// readLists reads modules.alias, modules.dep and modules.softdep (modules.dep(5)) into what each module says of itself. It
// returns nil where there are none; then the modules themselves have to be read, which takes longer.
func readLists(fsys fs.FS) (map[string]kmod.Modinfo, error) {
	var text [3]string
	for i, name := range []string{"modules.alias", "modules.dep", "modules.softdep"} {
		b, err := fs.ReadFile(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the lists of kernel modules: %w", err)
		}
		text[i] = string(b)
	}
	out := map[string]kmod.Modinfo{}
	for l := range strings.Lines(text[0]) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == "alias" {
			m := out[kmod.Name(f[2])]
			m.Aliases = append(m.Aliases, f[1])
			out[kmod.Name(f[2])] = m
		}
	}
	for l := range strings.Lines(text[1]) {
		if file, deps, ok := strings.Cut(l, ":"); ok {
			m := out[kmod.Name(file)]
			m.Depends = strings.Fields(deps)
			slices.Reverse(m.Depends) // what must be loaded first comes last
			out[kmod.Name(file)] = m
		}
	}
	for l := range strings.Lines(text[2]) {
		f := strings.Fields(l)
		if len(f) < 3 || f[0] != "softdep" {
			continue
		}
		m := out[kmod.Name(f[1])]
		for pre, words := false, f[2:]; len(words) > 0; words = words[1:] {
			switch {
			case strings.HasSuffix(words[0], ":"):
				pre = words[0] == "pre:"
			case pre:
				m.Pre = append(m.Pre, words[0])
			}
		}
		out[kmod.Name(f[1])] = m
	}
	return out, nil
}

// isHardware tells the aliases of devices ("pci:v00001AF4d...") from those of file systems, device files and the like.
func isHardware(alias string) bool {
	bus, _, ok := strings.Cut(alias, ":")
	return ok && bus != "devname" && bus != "symbol" && !strings.Contains(bus, "-")
}

// always loads what drives no devices, without the modules that skip names.
func (d *drivers) always(ctx context.Context, skip func(name string) bool) error {
	var errs []error
	for _, m := range d.all {
		if len(m.hardware) == 0 && !m.needed && !skip(m.name) {
			errs = append(errs, d.with(ctx, m))
		}
	}
	return errors.Join(errs...)
}

// present loads the drivers of devices that have appeared since it was last called. Loading some lets others appear, so it
// goes on until there is nothing new.
func (d *drivers) present(ctx context.Context) error {
	var errs []error
	for {
		fresh := d.fresh()
		if len(fresh) == 0 {
			return errors.Join(errs...)
		}
		for _, m := range d.all {
			if !m.loaded && slices.ContainsFunc(fresh, m.drives) {
				errs = append(errs, d.with(ctx, m))
			}
		}
	}
}

func (m *driver) drives(modalias string) bool {
	for _, p := range m.hardware {
		if ok, err := path.Match(p, modalias); ok && err == nil {
			return true
		}
	}
	return false
}

// fresh returns the modaliases of devices on the buses that the modules know, each once.
func (d *drivers) fresh() []string {
	buses := map[string]bool{}
	for _, m := range d.all {
		for _, a := range m.hardware {
			b, _, _ := strings.Cut(a, ":")
			if b == "of" { // device tree nodes hang on the platform bus
				b = "platform"
			}
			buses[b] = true
		}
	}
	var out []string
	for b := range buses {
		files, err := filepath.Glob(filepath.Join(d.bus, b, "devices/*/modalias"))
		if err != nil {
			continue
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if a := strings.TrimSpace(string(text)); err == nil && a != "" && !d.seen[a] {
				d.seen[a] = true
				out = append(out, a)
			}
		}
	}
	return out
}

// named loads one module by its name. One that is not in the list may be part of the kernel.
func (d *drivers) named(ctx context.Context, name string) error {
	if m := d.byName[kmod.Name(name)]; m != nil {
		return d.with(ctx, m)
	}
	return nil
}

// with loads m after what it needs.
func (d *drivers) with(ctx context.Context, m *driver) error {
	if m.loaded {
		return nil
	}
	m.loaded = true
	for _, n := range append(append([]string(nil), m.info.Pre...), m.info.Depends...) {
		if o := d.byName[kmod.Name(n)]; o != nil {
			if err := d.with(ctx, o); err != nil {
				return err
			}
		}
	}
	return d.load(ctx, m.file)
}

// skipHere says which modules are of no use on this machine: EFI's variables where there is no EFI, and hashing by the
// CPU's own instructions where it has none. The kernel asks for the latter by a program that a node does not have, so
// without us it would stay with plain C; without the instructions plain C is the fastest in an emulated machine.
func skipHere(efi bool, cpuinfo string) func(name string) bool {
	flags := map[string]bool{}
	for _, l := range strings.Split(cpuinfo, "\n") {
		if k, v, ok := strings.Cut(l, ":"); ok {
			switch strings.TrimSpace(k) {
			case "flags", "Features": // amd64, arm64
				for _, f := range strings.Fields(v) {
					flags[f] = true
				}
			}
		}
	}
	return func(name string) bool {
		switch name {
		case "efivarfs":
			return !efi
		case "loop": // for a root that is on no partition; see medium
			return true
		case "sha256_ssse3":
			return !flags["sha_ni"]
		case "sha2_ce", "sha256_arm64":
			return !flags["sha2"]
		}
		return false
	}
}
