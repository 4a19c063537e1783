package builder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"kingpost/internal/mesh"
)

// Recipe says what a node image is made of. It is strict YAML; see images/node.yaml.
type Recipe struct {
	// Kind is "node-image".
	Kind string `yaml:"kind"`
	// Extends names a recipe in the same folder; what this one leaves out is taken from it, and a list that
	// both have is this one's alone.
	Extends string `yaml:"extends,omitempty"`
	// Name is the image's name, and that of its output folder.
	Name    string `yaml:"name"`
	Version string `yaml:"version"`
	// Date is the release's own date (YYYY-MM-DD): every timestamp in it, and the floor of a node's clock.
	Date string `yaml:"date"`
	// Arch lists the architectures it can be built for, by Go's (and Debian's) names.
	Arch     []string  `yaml:"arch"`
	Debian   Debian    `yaml:"debian"`
	Programs []Program `yaml:"programs"`
	// Seed lists the modules that ship in the image: images/modules/NAME/module.json.
	Seed  []string `yaml:"seed"`
	Slots Slots    `yaml:"slots"`
	// Cmdline is words to add to the kernel's command line.
	Cmdline []string `yaml:"cmdline,omitempty"`
}

// Debian says what is taken from Debian.
type Debian struct {
	// Suite is the release to take packages from: "trixie".
	Suite string `yaml:"suite"`
	// Kernel is the kernel package's name without its architecture: "linux-image" or "linux-image-cloud".
	Kernel string `yaml:"kernel"`
	// Initrd lists the kernel modules that finding and reading a root may need. They are loaded in the initrd,
	// in this order.
	Initrd []string `yaml:"initrd"`
	// Modules lists the kernel modules of the root, beside those of the initrd. What they need comes along.
	Modules []string `yaml:"modules"`
	// Load lists those modules that are loaded at every start; others are loaded when a device asks for them.
	Load []string `yaml:"load,omitempty"`
	// Only adds modules on one architecture, whose kernel alone has them.
	Only map[string]ArchModules `yaml:"only,omitempty"`
	// Firmware lists packages whose /usr/lib/firmware goes into the root.
	Firmware []string `yaml:"firmware,omitempty"`
}

// ArchModules are kernel modules of one architecture, added to those of the same key in Debian.
type ArchModules struct {
	Initrd  []string `yaml:"initrd,omitempty"`
	Modules []string `yaml:"modules,omitempty"`
	Load    []string `yaml:"load,omitempty"`
}

// on is d with the modules that it has on arch alone.
func (d Debian) on(arch string) Debian {
	only := d.Only[arch]
	d.Initrd = slices.Concat(only.Initrd, d.Initrd)
	d.Modules = slices.Concat(d.Modules, only.Modules)
	d.Load = slices.Concat(d.Load, only.Load)
	return d
}

// Program is a program that goes into the root beside mesh-init and mesh-host.
type Program struct {
	// Deb is the package it comes from; its programs and the libraries that they need are taken.
	Deb string `yaml:"deb"`
}

// Slots says how large the partitions are. Data is what the image has; a node grows it to the disk's end.
type Slots struct {
	Root Size `yaml:"root"`
	ESP  Size `yaml:"esp"`
	Data Size `yaml:"data,omitempty"`
}

const (
	maxRecipe  = 1 << 20 // bytes
	maxExtends = 8
	recipeKind = "node-image"
)

// ReadRecipe reads the recipe name of fsys with all that it extends. An unknown key, a wrong type or a repeated
// key is an error with line, column and excerpt.
func ReadRecipe(fsys fs.FS, name string) (*Recipe, error) {
	var r Recipe
	chain := []string{}
	for next := name; next != ""; {
		if slices.Contains(chain, next) {
			return nil, fmt.Errorf("%s: extends itself: %s", name, strings.Join(append(chain, next), " -> "))
		}
		if chain = append(chain, next); len(chain) > maxExtends {
			return nil, fmt.Errorf("%s: more than %d recipes extend each other", name, maxExtends)
		}
		layer, err := parseRecipe(fsys, next)
		if err != nil {
			return nil, err
		}
		r.fillFrom(layer)
		if layer.Extends == "" {
			break
		}
		if layer.Extends != path.Base(layer.Extends) {
			return nil, fmt.Errorf("%s: extends: %q is not the name of a recipe in the same folder", next, layer.Extends)
		}
		next = path.Join(path.Dir(next), layer.Extends)
	}
	r.Extends = ""
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &r, nil
}

func parseRecipe(fsys fs.FS, name string) (*Recipe, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read recipe: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxRecipe+1))
	if err != nil {
		return nil, fmt.Errorf("read recipe %s: %w", name, err)
	}
	if len(raw) > maxRecipe {
		return nil, fmt.Errorf("recipe %s has more than %d bytes", name, maxRecipe)
	}
	var r Recipe
	if err := decodeYAML(name, raw, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// decodeYAML reads one strict YAML document into v; an error names file, line and column and shows the place.
func decodeYAML(name string, raw []byte, v any) (err error) {
	// The decoder trips over some tags without a value (found by fuzzing); a file must not be able to stop a build so.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: is no YAML that can be read: %v", name, p)
		}
	}()
	if err := yaml.UnmarshalWithOptions(raw, v, yaml.Strict()); err != nil {
		return explainYAML(name, err)
	}
	return nil
}

// fillFrom takes from base what r leaves out.
func (r *Recipe) fillFrom(base *Recipe) {
	fill(&r.Kind, base.Kind)
	fill(&r.Name, base.Name)
	fill(&r.Version, base.Version)
	fill(&r.Date, base.Date)
	fillList(&r.Arch, base.Arch)
	fill(&r.Debian.Suite, base.Debian.Suite)
	fill(&r.Debian.Kernel, base.Debian.Kernel)
	fillList(&r.Debian.Initrd, base.Debian.Initrd)
	fillList(&r.Debian.Modules, base.Debian.Modules)
	fillList(&r.Debian.Load, base.Debian.Load)
	fillList(&r.Debian.Firmware, base.Debian.Firmware)
	if r.Debian.Only == nil {
		r.Debian.Only = base.Debian.Only
	}
	fillList(&r.Programs, base.Programs)
	fillList(&r.Seed, base.Seed)
	fill(&r.Slots.Root, base.Slots.Root)
	fill(&r.Slots.ESP, base.Slots.ESP)
	fill(&r.Slots.Data, base.Slots.Data)
	fillList(&r.Cmdline, base.Cmdline)
}

func fill[T comparable](dst *T, base T) {
	var zero T
	if *dst == zero {
		*dst = base
	}
}

// fillList lets an empty list that is written down, "[]", stand: only an absent one is filled.
func fillList[T any](dst *[]T, base []T) {
	if *dst == nil {
		*dst = base
	}
}

// validate tells all that is wrong at once.
func (r *Recipe) validate() error {
	var errs []error
	bad := func(key, format string, a ...any) { errs = append(errs, fmt.Errorf(key+": "+format, a...)) }
	if r.Kind != recipeKind {
		bad("kind", "is %q, wanted %s", r.Kind, recipeKind)
	}
	if err := mesh.CheckName(r.Name); err != nil {
		bad("name", "%w", err)
	}
	if !isVersion(r.Version) {
		bad("version", "%.60q is no version such as 0.1.0: letters, digits, dots, ~ and hyphens, starting with a digit", r.Version)
	}
	if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
		bad("date", "%.40q is no date such as 2026-12-01", r.Date)
	} else if t := r.Time(); t.Year() < 1980 || t.Year() > 2107 {
		bad("date", "%s is outside of what FAT can write, 1980 to 2107", r.Date)
	}
	if len(r.Arch) == 0 {
		bad("arch", "names no architecture")
	}
	for _, a := range r.Arch {
		if _, ok := archs[a]; !ok {
			bad("arch", "%.40q is unknown; amd64 and arm64 are known", a)
		}
	}
	if r.Debian.Suite == "" || strings.ContainsAny(r.Debian.Suite, " \t\n/") {
		bad("debian.suite", "%.40q is no suite such as trixie", r.Debian.Suite)
	}
	for a := range r.Debian.Only {
		if !slices.Contains(r.Arch, a) {
			bad("debian.only", "%.40q is not in arch", a)
		}
	}
	if r.Debian.Kernel == "" {
		bad("debian.kernel", "is missing; linux-image or linux-image-cloud")
	}
	for _, p := range r.Programs {
		if p.Deb == "" {
			bad("programs", "an entry names no deb")
		}
	}
	seen := map[string]bool{}
	for _, m := range r.Seed {
		if err := mesh.CheckName(m); err != nil {
			bad("seed", "%w", err)
		}
		if seen[m] {
			bad("seed", "%s is there twice", m)
		}
		seen[m] = true
	}
	for key, s := range map[string]Size{"slots.root": r.Slots.Root, "slots.esp": r.Slots.ESP} {
		if s < 32<<20 {
			bad(key, "%s is too small, at least 32MiB", s)
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// isVersion accepts what the Boot Loader Specification can order and a file name can hold.
func isVersion(s string) bool {
	for _, c := range s {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '~', c == '-', c == '^':
		default:
			return false
		}
	}
	return s != "" && len(s) <= 60 && s[0] >= '0' && s[0] <= '9'
}

// Time is the release's date at midnight UTC.
func (r *Recipe) Time() time.Time {
	t, err := time.Parse(time.DateOnly, r.Date)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Info is what the release says about itself.
func (r *Recipe) Info(arch string) mesh.ReleaseInfo {
	return mesh.ReleaseInfo{Name: r.Name, Version: r.Version, Date: r.Date, Architecture: arch}
}

// Architecture picks the one to build: arch, or where it is empty the machine's if the recipe has it, else the first.
func (r *Recipe) Architecture(arch, machine string) (string, error) {
	switch {
	case arch != "" && !slices.Contains(r.Arch, arch):
		return "", fmt.Errorf("recipe %s is not for %s; it is for %s", r.Name, arch, strings.Join(r.Arch, ", "))
	case arch != "":
		return arch, nil
	case slices.Contains(r.Arch, machine):
		return machine, nil
	}
	return r.Arch[0], nil
}

// archInfo is what differs between architectures.
type archInfo struct {
	stub, boot string   // file names in the systemd-boot-efi package
	goEnv      []string // the lowest machine that its programs run on
}

var archs = map[string]archInfo{
	"amd64": {"linuxx64.efi.stub", "systemd-bootx64.efi", []string{"GOAMD64=v1"}},
	"arm64": {"linuxaa64.efi.stub", "systemd-bootaa64.efi", []string{"GOARM64=v8.0"}},
}
