package builder

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pkgFile is one file or link that goes from an unpacked package into the root.
type pkgFile struct {
	path string // in the root, usr-merged: "usr/sbin/runc"
	file string // on the build machine
	link string // target, for a symbolic link
}

// usrMerged turns "lib/x" into "usr/lib/x", as the root has it.
func usrMerged(p string) string {
	first, _, _ := strings.Cut(p, "/")
	switch first {
	case "bin", "sbin", "lib", "lib64":
		return "usr/" + p
	}
	return p
}

// programFiles lists the programs in an unpacked package: ELF executables where programs are.
func programFiles(tree string) ([]pkgFile, error) {
	var out []pkgFile
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/libexec", "bin", "sbin"} {
		err := filepath.WalkDir(filepath.Join(tree, dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || !isELF(p) {
				return ignoreMissing(err)
			}
			rel, err := filepath.Rel(tree, p)
			if err != nil {
				return err
			}
			out = append(out, pkgFile{path: usrMerged(filepath.ToSlash(rel)), file: p})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func ignoreMissing(err error) error {
	if err != nil && os.IsNotExist(err) {
		return nil
	}
	return err
}

func isELF(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	_, err = f.Read(magic[:])
	return err == nil && string(magic[:]) == elf.ELFMAG
}

// elfNeeds lists what an ELF file needs to be run: the sonames of its libraries, and its dynamic linker.
func elfNeeds(name string) (sonames []string, interp string, err error) {
	f, err := elf.Open(name)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	if sonames, err = f.ImportedLibraries(); err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return nil, "", err
		}
		interp = strings.TrimRight(string(b), "\x00")
	}
	return sonames, interp, nil
}

// library is a file that an ELF file needs, in the tree of a package.
type library struct {
	pkg   string
	files []pkgFile // links first, the file itself last
}

// libraryIndex finds libraries by soname in unpacked packages.
type libraryIndex struct {
	trees map[string]string // package to folder
	names []string          // packages, sorted
}

func newLibraryIndex(trees map[string]string) *libraryIndex {
	x := &libraryIndex{trees: trees}
	for n := range trees {
		x.names = append(x.names, n)
	}
	slices.Sort(x.names)
	return x
}

// find looks for a soname in the folders that Debian's dynamic linker looks into, or for an absolute path.
func (x *libraryIndex) find(name string) (*library, error) {
	patterns := []string{"usr/lib/*-linux-gnu/" + name, "usr/lib/" + name, "lib/*-linux-gnu/" + name, "lib/" + name}
	if path.IsAbs(name) {
		rel := strings.TrimPrefix(name, "/")
		patterns = []string{"usr/" + rel, rel}
	}
	for _, pkg := range x.names {
		for _, pattern := range patterns {
			found, err := filepath.Glob(filepath.Join(x.trees[pkg], pattern))
			if err != nil || len(found) == 0 {
				continue
			}
			files, err := followLinks(x.trees[pkg], found[0])
			return &library{pkg, files}, err
		}
	}
	return nil, nil
}

// followLinks lists a file and the links that lead to it.
func followLinks(tree, name string) ([]pkgFile, error) {
	var out []pkgFile
	for range 10 {
		rel, err := filepath.Rel(tree, name)
		if err != nil || strings.HasPrefix(rel, "..") {
			return nil, fmt.Errorf("%s leads out of its package", name)
		}
		st, err := os.Lstat(name)
		if err != nil {
			return nil, err
		}
		f := pkgFile{path: usrMerged(filepath.ToSlash(rel)), file: name}
		if st.Mode()&fs.ModeSymlink == 0 {
			return append(out, f), nil
		}
		if f.link, err = os.Readlink(name); err != nil {
			return nil, err
		}
		out = append(out, f)
		if path.IsAbs(f.link) {
			name = filepath.Join(tree, f.link)
			if _, err := os.Lstat(name); err != nil {
				name = filepath.Join(tree, "usr", f.link)
			}
		} else {
			name = filepath.Join(filepath.Dir(name), f.link)
		}
	}
	return nil, fmt.Errorf("%s: too many links", name)
}

// closure lists programs with all the libraries that they need, and the packages these are from. A library that no
// package has is an error that names it and who needs it.
func (x *libraryIndex) closure(programs []pkgFile) (files []pkgFile, pkgs []string, err error) {
	seen := map[string]bool{}
	todo := slices.Clone(programs)
	files = slices.Clone(programs)
	for len(todo) > 0 {
		f := todo[0]
		todo = todo[1:]
		needs, interp, err := elfNeeds(f.file)
		if err != nil {
			return nil, nil, err
		}
		if interp != "" {
			needs = append(needs, interp)
		}
		for _, n := range needs {
			if seen[n] {
				continue
			}
			seen[n] = true
			lib, err := x.find(n)
			if err != nil {
				return nil, nil, err
			}
			if lib == nil {
				return nil, nil, fmt.Errorf("%s needs %s, which none of the packages %s has", f.path, n, strings.Join(x.names, ", "))
			}
			for _, lf := range lib.files {
				if !slices.ContainsFunc(files, func(o pkgFile) bool { return o.path == lf.path }) {
					files = append(files, lf)
				}
			}
			todo = append(todo, lib.files[len(lib.files)-1])
			if !slices.Contains(pkgs, lib.pkg) {
				pkgs = append(pkgs, lib.pkg)
			}
		}
	}
	return files, pkgs, nil
}
