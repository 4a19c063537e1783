package kmod

import (
	"context"
	"errors"
	"io/fs"
)

// Loader loads modules from a folder that has modules.dep, modules.alias, modules.softdep and modules.builtin
// (written by an Index, or by depmod). Missing lists count as empty. It is safe for concurrent use.
type Loader struct {
	fsys fs.FS
}

// NewLoader reads the lists in fsys, whose root is "/usr/lib/modules/KVER".
func NewLoader(fsys fs.FS) (*Loader, error) { return nil, errors.ErrUnsupported }

// Load loads the named modules and what they need. Built-in and already loaded ones are fine. All names are tried;
// the error joins what went wrong with each.
func (l *Loader) Load(ctx context.Context, names ...string) error { return errors.ErrUnsupported }

// LoadByModalias loads a module for every device that sys ("/sys" as fs.FS) shows and for which there is one.
// It runs again until no new device appears, at most four times, and returns the names that were loaded. A device
// whose module fails to load does not stop the others; the error joins the failures.
func (l *Loader) LoadByModalias(ctx context.Context, sys fs.FS) ([]string, error) {
	return nil, errors.ErrUnsupported
}

// LoadFiles loads the module files in fsys in that order: the initrd's /modules/load. Already loaded ones are fine.
func LoadFiles(ctx context.Context, fsys fs.FS, files []string) error { return errors.ErrUnsupported }
