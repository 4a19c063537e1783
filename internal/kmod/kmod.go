// Package kmod indexes Linux kernel modules, works out what must be loaded in which order, and loads it.
//
// Indexing and resolving work on an fs.FS with .ko, .ko.xz and .ko.zst files and need neither depmod nor the kernel
// that the modules are for; loading needs Linux and CAP_SYS_MODULE. It never unloads. Start with ReadIndex and Index.Closure.
package kmod

import (
	"context"
	"errors"
	"io"
	"io/fs"
)

// Module is one kernel module.
type Module struct {
	// Name has underscores where a file name may have hyphens: "virtio_net".
	Name string
	// File is the path below the modules folder: "kernel/drivers/net/virtio_net.ko.xz".
	File string
	Modinfo
}

// Modinfo is what a module's .modinfo section says.
type Modinfo struct {
	Name    string // "name"; empty in very old modules
	Depends []string
	Aliases []string
	// Pre and Post are soft dependencies: loaded before and after where they exist.
	Pre, Post []string
	Firmware  []string
	VerMagic  string
}

// Index is all modules of one kernel.
type Index struct {
	// Modules is sorted by File.
	Modules []*Module
	// Builtin holds the names in modules.builtin.
	Builtin map[string]bool
}

// ReadIndex reads every module in fsys, whose root is the folder that has modules.builtin ("lib/modules/KVER").
func ReadIndex(ctx context.Context, fsys fs.FS) (*Index, error) { return nil, errors.ErrUnsupported }

// ReadModinfo reads the .modinfo section of an uncompressed module.
func ReadModinfo(r io.ReaderAt) (Modinfo, error) { return Modinfo{}, errors.ErrUnsupported }

// Open opens a module of fsys, decompressed by the ending of its name.
func Open(fsys fs.FS, file string) (io.ReadCloser, error) { return nil, errors.ErrUnsupported }

// Closure returns the named modules and all that they need, each after what it needs. A name may have hyphens or
// underscores, and may be an alias. Built-in names need nothing and are left out; an unknown one is an error.
func (x *Index) Closure(names ...string) ([]*Module, error) { return nil, errors.ErrUnsupported }

// Match returns the modules whose aliases match modalias ("pci:v00001AF4d..."), sorted by name.
func (x *Index) Match(modalias string) []*Module { return nil }

// Subset returns an index of only those modules, under the file names that rename gives them (nil: their own).
func (x *Index) Subset(modules []*Module, rename func(file string) string) *Index { return nil }

// WriteDep writes modules.dep as depmod(8) does: "FILE: NEEDED...".
func (x *Index) WriteDep(w io.Writer) error { return errors.ErrUnsupported }

// WriteAlias writes modules.alias: "alias PATTERN NAME".
func (x *Index) WriteAlias(w io.Writer) error { return errors.ErrUnsupported }

// WriteSoftdep writes modules.softdep: "softdep NAME pre: ... post: ...".
func (x *Index) WriteSoftdep(w io.Writer) error { return errors.ErrUnsupported }

// WriteBuiltin writes modules.builtin, one "kernel/NAME.ko" a line.
func (x *Index) WriteBuiltin(w io.Writer) error { return errors.ErrUnsupported }
