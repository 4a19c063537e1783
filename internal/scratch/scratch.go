// Package scratch makes folders and files for what is in the making, and removes those of programs that were killed.
//
// Whoever makes one holds its lock (flock) for as long as it lives; the kernel lets go of it however that ends. So one
// whose lock can be had is nobody's any more, and the next program that makes one of the same kind in the same place
// removes it. It never touches what is locked, what belongs to another user, or what only a link leads to.
//
// Start with Dir.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Held is a folder or a file that was made here and is held until Remove or Release.
type Held struct {
	// Path is where it is.
	Path string
	// File is open on it: a file may be written through it.
	File *os.File
}

// Dir makes a folder in parent whose name begins with prefix, which says what kind it is, and holds it. Those of the
// same kind that nobody holds any more are removed first.
func Dir(parent, prefix string) (*Held, error) {
	return hold(parent, prefix, func() (*os.File, error) {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		return os.Open(dir)
	})
}

// File is like Dir, for a file.
func File(parent, prefix string) (*Held, error) {
	return hold(parent, prefix, func() (*os.File, error) { return os.CreateTemp(parent, prefix) })
}

// tries bounds how often another program may sweep away what is not locked yet.
const tries = 10

func hold(parent, prefix string, create func() (*os.File, error)) (*Held, error) {
	Sweep(parent, prefix)
	for range tries {
		f, err := create()
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(parent); err == nil {
				continue // swept away before it was opened
			}
		}
		if err != nil {
			return nil, err
		}
		if lock(f) && same(f) {
			return &Held{f.Name(), f}, nil
		}
		f.Close() // whoever has the lock is sweeping it away
	}
	return nil, fmt.Errorf("make %s in %s: other programs remove it at once", prefix, parent)
}

// lock takes the lock of f if it can be had.
func lock(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// same says whether f is still what its path leads to: a link is not followed.
func same(f *os.File) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(open, there)
}

// Remove removes it with all that is in it.
func (h *Held) Remove() error {
	return errors.Join(RemoveTree(h.Path), h.File.Close())
}

// Release lets go of it: it was given another name, or has become something that stays.
func (h *Held) Release() error { return h.File.Close() }

// Sweep removes what is in parent, begins with prefix, is this user's, and is held by nobody. What cannot be removed
// stays; the next sweep meets it again.
func Sweep(parent, prefix string) {
	names, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, n := range names {
		if strings.HasPrefix(n.Name(), prefix) && (n.IsDir() || n.Type().IsRegular()) {
			sweep(filepath.Join(parent, n.Name()))
		}
	}
}

func sweep(path string) {
	// O_NONBLOCK: between the listing and here it may have become a pipe.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !ours(st) || !lock(f) || !same(f) {
		return
	}
	RemoveTree(path)
}

func ours(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

// RemoveTree removes a file, or a folder also with read-only ones in it.
func RemoveTree(path string) error {
	filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			if st, err := d.Info(); err == nil && st.Mode().Perm()&0o700 != 0o700 {
				os.Chmod(p, st.Mode().Perm()|0o700)
			}
		}
		return nil
	})
	return os.RemoveAll(path)
}
