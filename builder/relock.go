package builder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// resolveDebs works out what a recipe comes down to on arch today: the packages that apt would install, as far as
// something of them goes into the image.
func resolveDebs(ctx context.Context, r *Recipe, arch string, a *apt, p *packages, phase Phase) ([]LockedDeb, error) {
	if err := a.update(ctx, listsAge); err != nil {
		return nil, err
	}
	var out []LockedDeb
	add := func(use, name string) (debInfo, error) {
		d, ok, err := a.show(ctx, name)
		if err != nil {
			return d, err
		}
		if !ok {
			return d, fmt.Errorf("Debian %s has no package %s for %s", r.Debian.Suite, name, arch)
		}
		d.For = use
		out = append(out, d.LockedDeb)
		return d, nil
	}

	kernel, err := kernelPackage(ctx, r, arch, a)
	if err != nil {
		return nil, err
	}
	if _, err := add(forKernel, kernel); err != nil {
		return nil, err
	}
	if _, err := add(forBoot, "systemd-boot-efi"); err != nil {
		return nil, err
	}
	for _, f := range r.Debian.Firmware {
		if _, err := add(forFirmware, f); err != nil {
			return nil, err
		}
	}
	programs := map[string]bool{}
	var roots []debInfo
	for _, prog := range r.Programs {
		d, err := add(forProgram, prog.Deb)
		if err != nil {
			return nil, err
		}
		programs[prog.Deb] = true
		roots = append(roots, d)
	}
	libs, err := resolveLibraries(ctx, a, p, roots, phase)
	if err != nil {
		return nil, err
	}
	for _, l := range libs {
		if !programs[l.Package] {
			l.For = forLibrary
			out = append(out, l)
		}
	}
	return out, nil
}

// kernelPackage follows the kernel's name, which Debian keeps as an empty package, to the one that has a kernel in it.
func kernelPackage(ctx context.Context, r *Recipe, arch string, a *apt) (string, error) {
	name := r.Debian.Kernel + "-" + arch
	d, ok, err := a.show(ctx, name)
	if err != nil {
		return "", err
	}
	if !ok {
		return "", fmt.Errorf("debian.kernel: Debian %s has no package %s", r.Debian.Suite, name)
	}
	for _, dep := range dependNames(d.Depends) {
		if strings.HasPrefix(dep, "linux-image-") {
			return dep, nil
		}
	}
	return name, nil
}

// resolveLibraries fetches the programs and what they depend on, and keeps the packages that have a library which
// is really needed.
func resolveLibraries(ctx context.Context, a *apt, p *packages, roots []debInfo, phase Phase) ([]LockedDeb, error) {
	all := map[string]debInfo{}
	todo := slices.Clone(roots)
	for _, d := range roots {
		all[d.Package] = d
	}
	for len(todo) > 0 {
		d := todo[0]
		todo = todo[1:]
		for _, name := range dependNames(d.Depends) {
			if _, ok := all[name]; ok {
				continue
			}
			dep, ok, err := a.show(ctx, name)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue // a virtual package: a library never is
			}
			all[name] = dep
			todo = append(todo, dep)
		}
	}
	var debs []LockedDeb
	for _, name := range slices.Sorted(maps.Keys(all)) {
		debs = append(debs, all[name].LockedDeb)
	}
	if err := p.fetch(ctx, debs, phase); err != nil {
		return nil, err
	}
	trees := map[string]string{}
	for _, d := range debs {
		t, err := p.tree(ctx, d)
		if err != nil {
			return nil, err
		}
		trees[d.Package] = t
	}
	var programs []pkgFile
	for _, d := range roots {
		f, err := programFiles(trees[d.Package])
		if err != nil {
			return nil, err
		}
		if len(f) == 0 {
			return nil, fmt.Errorf("programs: the package %s has no program in it", d.Package)
		}
		programs = append(programs, f...)
	}
	_, pkgs, err := newLibraryIndex(trees).closure(programs)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(debs, func(d LockedDeb) bool { return !slices.Contains(pkgs, d.Package) }), nil
}
