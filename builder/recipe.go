package builder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/release"
	"kingpost/internal/strictyaml"
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
	// Outputs names what a build makes of the release; see Outputs. Left out, it is the word "default".
	Outputs []string `yaml:"outputs,omitempty"`
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
	// Disk is how large the disk of a virtual machine is at first: qcow2, vmdk and vhdx, which are thin. 0 is 8 GiB, or
	// what the image has where that is more.
	Disk Size `yaml:"disk,omitempty"`
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
		if err != nil && len(chain) > 1 {
			err = fmt.Errorf("%s extends it: %w", chain[len(chain)-2], err)
		}
		if err != nil {
			return nil, err
		}
		r.fillFrom(layer)
		if layer.Extends == "" {
			break
		}
		if layer.Extends != path.Base(layer.Extends) || path.Ext(layer.Extends) != ".yaml" {
			return nil, fmt.Errorf("%s: extends: %.60q is not the name of a recipe in the same folder, NAME.yaml", next, layer.Extends)
		}
		next = path.Join(path.Dir(next), layer.Extends)
	}
	r.Extends = ""
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(chain, ", extending "), err)
	}
	return &r, nil
}

func parseRecipe(fsys fs.FS, name string) (*Recipe, error) {
	raw, err := readBounded(fsys, name, maxRecipe)
	if err != nil {
		return nil, fmt.Errorf("read recipe: %w", err)
	}
	var r Recipe
	if err := decodeYAML(name, raw, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// readBounded reads a regular file of at most most bytes. Anything else, such as a FIFO, could hold a build up for ever.
func readBounded(fsys fs.FS, name string, most int64) ([]byte, error) {
	switch st, err := fs.Stat(fsys, name); {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if int64(len(raw)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return raw, nil
}

// decodeYAML reads one strict YAML document into v; an error names file, line and column and shows the place.
func decodeYAML(name string, raw []byte, v any) error {
	if err := strictyaml.Unmarshal(raw, v); err != nil {
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
	fill(&r.Slots.Disk, base.Slots.Disk)
	fillList(&r.Cmdline, base.Cmdline)
	fillList(&r.Outputs, base.Outputs)
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
	if !suiteName.MatchString(r.Debian.Suite) {
		bad("debian.suite", "%.40q is no suite such as trixie", r.Debian.Suite)
	}
	if !packageName.MatchString(r.Debian.Kernel) {
		bad("debian.kernel", "%.60q is no name of a package; linux-image or linux-image-cloud", r.Debian.Kernel)
	}
	list := func(key, what string, form *regexp.Regexp, names []string) {
		for i, n := range names {
			switch {
			case form != nil && !form.MatchString(n):
				bad(key, "%.60q is no name of a %s", n, what)
			case slices.Contains(names[:i], n):
				bad(key, "%.60s is there twice", n)
			}
		}
	}
	modules := func(key string, m ArchModules) {
		list(key+".initrd", "kernel module", moduleName, m.Initrd)
		list(key+".modules", "kernel module", moduleName, m.Modules)
		list(key+".load", "kernel module", moduleName, m.Load)
	}
	modules("debian", ArchModules{r.Debian.Initrd, r.Debian.Modules, r.Debian.Load})
	for a, m := range r.Debian.Only {
		if !slices.Contains(r.Arch, a) {
			bad("debian.only", "%.40q is not in arch", a)
		}
		modules("debian.only."+a, m)
	}
	list("arch", "architecture", nil, r.Arch)
	list("debian.firmware", "package", packageName, r.Debian.Firmware)
	var debs []string
	for _, p := range r.Programs {
		debs = append(debs, p.Deb)
	}
	list("programs.deb", "package", packageName, debs)
	for _, m := range r.Seed {
		if err := mesh.CheckName(m); err != nil {
			bad("seed", "%w", err)
		}
	}
	list("seed", "module", nil, r.Seed)
	list("outputs", "output", nil, r.Outputs)
	if _, err := chooseOutputs(r.Outputs); err != nil {
		bad("outputs", "%w", err)
	}
	for _, s := range []struct {
		key     string
		is, min Size
	}{{"slots.root", r.Slots.Root, 32 << 20}, {"slots.esp", r.Slots.ESP, 33 << 20}, {"slots.data", r.Slots.Data, 0}, {"slots.disk", r.Slots.Disk, 0}} {
		switch {
		case s.is < s.min:
			bad(s.key, "%s is too small, at least %s", s.is, s.min)
		case s.is%(1<<20) != 0 || s.is > 8<<40:
			bad(s.key, "%s is no whole number of MiB up to 8TiB", s.is)
		}
	}
	if _, err := release.RescueCmdline("amd64", r.Cmdline...); err != nil {
		bad("cmdline", "%w", err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Names in Debian and in its kernels. Some become words of a command, where "-o" would be an option.
var (
	suiteName   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]{1,127}$`)
	moduleName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
)

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
