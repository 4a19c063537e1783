package builder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"kingpost/internal/mesh/artifact"
)

// Lock pins everything that a recipe comes down to. It lies beside the recipe, NAME.lock for NAME.yaml, and is
// written by --update-lock alone; a build that would need anything else is an error.
type Lock struct {
	Kind  string `yaml:"kind"`  // "node-lock"
	Suite string `yaml:"suite"` // what the packages are from
	// Kernel is the name that the recipe has for the kernel: "linux-image".
	Kernel string `yaml:"kernel"`
	// Go is the toolchain's version: "go1.26.8". Another one gives other bytes.
	Go string `yaml:"go"`
	// Modules binds each go.sum, by its path in the repository, to its digest; go.sum binds every module.
	Modules map[string]string `yaml:"modules"`
	// Debs lists the packages per architecture.
	Debs map[string][]LockedDeb `yaml:"debs"`
	// Produced is, per architecture, what came out when the lock was written.
	Produced map[string]Produced `yaml:"produced,omitempty"`
}

// LockedDeb is one Debian package, to the byte.
type LockedDeb struct {
	Package string `yaml:"package"`
	Version string `yaml:"version"`
	// Arch is the package's own: "amd64", or "all".
	Arch   string `yaml:"arch"`
	SHA256 string `yaml:"sha256"` // hex
	Size   int64  `yaml:"size"`   // bytes
	// For says what is taken from it: "kernel", "boot", "program", "library" or "firmware".
	For string `yaml:"for"`
}

// FileName is the package's name in a cache or a folder of packages, as apt-get download writes it.
func (d LockedDeb) FileName() string {
	return d.Package + "_" + strings.ReplaceAll(d.Version, ":", "%3a") + "_" + d.Arch + ".deb"
}

func (d LockedDeb) String() string { return d.Package + " " + d.Version + " " + d.Arch }

// Produced is what a build gave. As long as Inputs is the same, so must Files be.
type Produced struct {
	// Inputs is the digest of all that went in: recipe, packages, toolchain, modules and sources.
	Inputs string `yaml:"inputs"`
	// Files binds output files to their SHA-256 in hex.
	Files map[string]string `yaml:"files"`
}

const (
	lockKind = "node-lock"
	maxLock  = 4 << 20 // bytes
)

// Uses of a package.
const (
	forKernel   = "kernel"
	forBoot     = "boot"
	forProgram  = "program"
	forLibrary  = "library"
	forFirmware = "firmware"
)

// LockName is the lock's file name for a recipe's.
func LockName(recipe string) string { return strings.TrimSuffix(recipe, ".yaml") + ".lock" }

// ReadLock reads a lock. One that is not there is an error that wraps fs.ErrNotExist.
func ReadLock(fsys fs.FS, name string) (*Lock, error) {
	raw, err := readBounded(fsys, name, maxLock)
	if err != nil {
		return nil, fmt.Errorf("read lock: %w", err)
	}
	return parseLock(name, raw)
}

func parseLock(name string, raw []byte) (*Lock, error) {
	var l Lock
	if err := decodeYAML(name, raw, &l); err != nil {
		return nil, err
	}
	if err := l.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &l, nil
}

func (l *Lock) validate() error {
	if l.Kind != lockKind {
		return fmt.Errorf("kind: is %.40q, wanted %s", l.Kind, lockKind)
	}
	var errs []error
	for arch, debs := range l.Debs {
		for _, d := range debs {
			if d.Package == "" || d.Version == "" || d.Size <= 0 || artifact.CheckDigest("sha256:"+d.SHA256) != nil {
				errs = append(errs, fmt.Errorf("debs.%s: %s is not pinned by version, sha256 and size", arch, d))
			}
			// The name becomes a file's.
			if strings.ContainsAny(d.Package+d.Version+d.Arch, "/\x00") {
				errs = append(errs, fmt.Errorf("debs.%s: %.80q is no package", arch, d))
			}
			switch d.For {
			case forKernel, forBoot, forProgram, forLibrary, forFirmware:
			default:
				errs = append(errs, fmt.Errorf("debs.%s: %s is for %.40q, which is unknown", arch, d, d.For))
			}
		}
	}
	return errors.Join(errs...)
}

// debs returns the packages of arch with a use.
func (l *Lock) debs(arch string, use ...string) []LockedDeb {
	var out []LockedDeb
	for _, d := range l.Debs[arch] {
		if slices.Contains(use, d.For) {
			out = append(out, d)
		}
	}
	return out
}

// deb returns the one package of arch with a use.
func (l *Lock) deb(arch, use string) (LockedDeb, error) {
	found := l.debs(arch, use)
	if len(found) != 1 {
		return LockedDeb{}, fmt.Errorf("the lock has %d packages for %s on %s, wanted one", len(found), use, arch)
	}
	return found[0], nil
}

// Matches checks that a recipe asks for no package that the lock does not have, and of the same suite.
func (l *Lock) matches(r *Recipe, arch string) error {
	var errs []error
	if l.Suite != r.Debian.Suite {
		errs = append(errs, fmt.Errorf("it is for suite %s, the recipe asks for %s", l.Suite, r.Debian.Suite))
	}
	if len(l.Debs[arch]) == 0 {
		errs = append(errs, fmt.Errorf("it has no packages for %s", arch))
	}
	has := map[string]bool{}
	for _, d := range l.Debs[arch] {
		has[d.For+" "+d.Package] = true
	}
	for _, p := range r.Programs {
		if !has[forProgram+" "+p.Deb] {
			errs = append(errs, fmt.Errorf("it lacks the program package %s", p.Deb))
		}
	}
	for _, f := range r.Debian.Firmware {
		if !has[forFirmware+" "+f] {
			errs = append(errs, fmt.Errorf("it lacks the firmware package %s", f))
		}
	}
	if l.Kernel != r.Debian.Kernel {
		errs = append(errs, fmt.Errorf("it has the kernel %s, the recipe asks for %s", l.Kernel, r.Debian.Kernel))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the lock does not match the recipe:\n%w", err)
	}
	return nil
}

const lockHead = "# Made by `kingpost build --update-lock`: what the recipe beside it comes down to. Do not edit.\n"

// Render writes a lock as the file holds it: sorted, so that a difference is readable.
func (l *Lock) Render() ([]byte, error) {
	for _, debs := range l.Debs {
		slices.SortFunc(debs, func(a, b LockedDeb) int {
			return strings.Compare(a.For+" "+a.Package, b.For+" "+b.Package)
		})
	}
	var b bytes.Buffer
	b.WriteString(lockHead)
	// Written item by item: the encoder would go through maps in random order.
	fmt.Fprintf(&b, "kind: %s\nsuite: %s\nkernel: %s\ngo: %s\n", l.Kind, l.Suite, l.Kernel, l.Go)
	b.WriteString("modules:\n")
	for _, k := range slices.Sorted(maps.Keys(l.Modules)) {
		fmt.Fprintf(&b, "  %s: %s\n", k, l.Modules[k])
	}
	b.WriteString("debs:\n")
	for _, arch := range slices.Sorted(maps.Keys(l.Debs)) {
		fmt.Fprintf(&b, "  %s:\n", arch)
		for _, d := range l.Debs[arch] {
			item, err := yaml.Marshal(d)
			if err != nil {
				return nil, err
			}
			prefix := "    - "
			for line := range strings.Lines(string(item)) {
				b.WriteString(prefix + line)
				prefix = "      "
			}
		}
	}
	if len(l.Produced) > 0 {
		b.WriteString("produced:\n")
	}
	for _, arch := range slices.Sorted(maps.Keys(l.Produced)) {
		p := l.Produced[arch]
		fmt.Fprintf(&b, "  %s:\n    inputs: %s\n    files:\n", arch, p.Inputs)
		for _, f := range slices.Sorted(maps.Keys(p.Files)) {
			fmt.Fprintf(&b, "      %s: %s\n", f, p.Files[f])
		}
	}
	return b.Bytes(), nil
}
