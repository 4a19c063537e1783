// Package rootfs assembles a root file system as an index of entries and writes it as an EROFS image.
//
// The index holds names, owners and modes; contents stay where they are (a file, a spool) until the image is
// written, so memory does not grow with them. It reads no clock and no owner of the build machine, so the same
// entries give the same bytes. It never touches the build machine's own file system beyond the files it is given,
// and needs no privilege. Start with New, then Tree.AddFile and Tree.AddTar, then WriteEROFS.
package rootfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
)

// Spool keeps contents that arrive as a stream until they are written; an *os.File is one.
type Spool interface {
	io.ReaderAt
	io.WriterAt
}

// Entry is one directory, regular file or symbolic link.
type Entry struct {
	// Path is clean, relative and slash-separated; "." is the root directory.
	Path string
	// Mode is the type and the permission bits, with fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky.
	Mode     fs.FileMode
	UID, GID int
	// Size is a regular file's length in bytes; Open must give exactly as many.
	Size int64
	// Open gives a regular file's content. It is called once for each image that is written.
	Open func() (io.ReadCloser, error)
	// Link is a symbolic link's target, verbatim.
	Link string
	// Xattrs maps full names ("security.capability") to values.
	Xattrs map[string]string
}

// Tree is a file system in the making. It is not safe for concurrent use.
type Tree struct {
	entries map[string]*Entry
	spool   Spool
	used    int64 // bytes of spool
}

// New returns a tree with a root directory. Contents of archives go to spool; where it is nil they are kept in memory.
func New(spool Spool) *Tree {
	t := &Tree{entries: map[string]*Entry{}, spool: spool}
	t.entries["."] = &Entry{Path: ".", Mode: fs.ModeDir | 0o755}
	return t
}

// clean turns an archive's or caller's name into an entry's path.
func clean(p string) (string, error) {
	p = strings.TrimPrefix(p, "/")
	for _, part := range strings.Split(p, "/") {
		if part == ".." {
			return "", fmt.Errorf("the path %q leaves the tree", p)
		}
	}
	if strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("the path %q has a zero byte", p)
	}
	p = path.Clean(p)
	for _, part := range strings.Split(p, "/") {
		if len(part) > 255 {
			return "", fmt.Errorf("the path %.40q... has a name longer than 255 bytes", p)
		}
	}
	return p, nil
}

// resolve follows the symbolic links among p's parent directories, so that "bin/sh" lands in "usr/bin" once
// "bin" is a link there, as it would on a running system. p itself is not followed.
func (t *Tree) resolve(p string) (string, error) {
	for range 40 { // as many as the kernel follows, path_resolution(7)
		parts := strings.Split(p, "/")
		again := false
		for i := 1; i < len(parts); i++ {
			dir := strings.Join(parts[:i], "/")
			e := t.entries[dir]
			if e == nil || e.Mode.Type() != fs.ModeSymlink {
				continue
			}
			target := e.Link
			if !strings.HasPrefix(target, "/") {
				target = path.Join("/", path.Dir(dir), target)
			}
			p = strings.TrimPrefix(path.Join(path.Clean("/"+target), strings.Join(parts[i:], "/")), "/")
			again = true
			break
		}
		if !again {
			return p, nil
		}
	}
	return "", fmt.Errorf("too many symbolic links on the way to %q", p)
}

// Add puts e into the tree, replacing a file or link of the same name. Missing parent directories are made,
// root's and 0755. A directory over a directory takes the new mode and owner; over a link to a directory, as
// in a usr-merged root, it changes nothing.
func (t *Tree) Add(e Entry) error {
	p, err := clean(e.Path)
	if err != nil {
		return err
	}
	if p, err = t.resolve(p); err != nil {
		return err
	}
	switch e.Mode.Type() {
	case 0:
		if e.Open == nil || e.Size < 0 {
			return fmt.Errorf("the file %q has no content", p)
		}
	case fs.ModeSymlink:
		if e.Link == "" || len(e.Link) > 4095 {
			return fmt.Errorf("the symbolic link %q has no usable target", p)
		}
	case fs.ModeDir:
	default:
		return fmt.Errorf("%q is a %s; a root holds only directories, files and symbolic links", p, e.Mode.Type())
	}
	if p == "." && !e.Mode.IsDir() {
		return fmt.Errorf("the root of the tree can only be a directory")
	}
	if e.UID < 0 || e.GID < 0 {
		return fmt.Errorf("%q has a negative owner", p)
	}
	if old := t.entries[p]; old != nil && old.Mode.IsDir() != e.Mode.IsDir() {
		if old.Mode.IsDir() {
			return fmt.Errorf("%q is a directory already and cannot become a %s", p, kindName(e.Mode))
		}
		if old.Mode.Type() == fs.ModeSymlink {
			return nil
		}
		return fmt.Errorf("%q is a file already and cannot become a directory", p)
	}
	if err := t.parents(p); err != nil {
		return err
	}
	e.Path = p
	t.entries[p] = &e
	return nil
}

func kindName(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symbolic link"
	}
	return "file"
}

func (t *Tree) parents(p string) error {
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		e := t.entries[dir]
		if e == nil {
			t.entries[dir] = &Entry{Path: dir, Mode: fs.ModeDir | 0o755}
			continue
		}
		if !e.Mode.IsDir() {
			return fmt.Errorf("%q cannot be put below %q, which is a %s", p, dir, kindName(e.Mode))
		}
		return nil
	}
	return nil
}

// AddFile adds a regular file, root's, of exactly size bytes. mode is its permission bits.
func (t *Tree) AddFile(p string, mode fs.FileMode, size int64, open func() (io.ReadCloser, error)) error {
	return t.Add(Entry{Path: p, Mode: mode &^ fs.ModeType, Size: size, Open: open})
}

// AddBytes adds a small regular file, root's.
func (t *Tree) AddBytes(p string, mode fs.FileMode, data []byte) error {
	return t.AddFile(p, mode, int64(len(data)), openBytes(data))
}

func openBytes(data []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
}

// AddFrom adds the regular file name of fsys, root's. The file must not change before the image is written.
func (t *Tree) AddFrom(p string, mode fs.FileMode, fsys fs.FS, name string) error {
	st, err := fs.Stat(fsys, name)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", name)
	}
	return t.AddFile(p, mode, st.Size(), func() (io.ReadCloser, error) { return fsys.Open(name) })
}

// AddOSFile adds a file of the build machine, root's. It must not change before the image is written.
func (t *Tree) AddOSFile(p string, mode fs.FileMode, file string) error {
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", file)
	}
	return t.AddFile(p, mode, st.Size(), func() (io.ReadCloser, error) { return os.Open(file) })
}

// AddFS adds everything in fsys below prefix, root's: directories 0755, files 0644, or 0755 where the owner may
// execute them. Symbolic links and other kinds are refused, since an fs.FS cannot name a link's target.
func (t *Tree) AddFS(prefix string, fsys fs.FS) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p := path.Join(prefix, name)
		switch {
		case d.IsDir():
			return t.AddDir(p, 0o755)
		case d.Type().IsRegular():
			st, err := d.Info()
			if err != nil {
				return err
			}
			mode := fs.FileMode(0o644)
			if st.Mode()&0o100 != 0 {
				mode = 0o755
			}
			return t.AddFrom(p, mode, fsys, name)
		}
		return fmt.Errorf("%s is a %s; only directories and files can be taken from a folder", name, d.Type())
	})
}

// AddDir adds a directory, root's. mode is its permission bits.
func (t *Tree) AddDir(p string, mode fs.FileMode) error {
	return t.Add(Entry{Path: p, Mode: fs.ModeDir | mode&^fs.ModeType})
}

// AddSymlink adds a symbolic link to target.
func (t *Tree) AddSymlink(p, target string) error {
	return t.Add(Entry{Path: p, Mode: fs.ModeSymlink | 0o777, Link: target})
}

// Remove takes p, and all below it, out of the tree. It says whether there was such an entry.
func (t *Tree) Remove(p string) bool {
	p, err := clean(p)
	if err != nil || p == "." {
		return false
	}
	if _, ok := t.entries[p]; !ok {
		return false
	}
	for name := range t.entries {
		if name == p || strings.HasPrefix(name, p+"/") {
			delete(t.entries, name)
		}
	}
	return true
}

// Entry returns the entry at p, links in its parents followed, or nil.
func (t *Tree) Entry(p string) *Entry {
	p, err := clean(p)
	if err != nil {
		return nil
	}
	if p, err = t.resolve(p); err != nil {
		return nil
	}
	return t.entries[p]
}

// Entries returns all entries sorted by path, each directory before what is in it.
func (t *Tree) Entries() []*Entry {
	out := make([]*Entry, 0, len(t.entries))
	for _, e := range t.entries {
		out = append(out, e)
	}
	key := func(p string) string { return strings.ReplaceAll(p, "/", "\x00") }
	sort.Slice(out, func(i, j int) bool {
		if a, b := out[i].Path == ".", out[j].Path == "."; a || b {
			return a && !b
		}
		return key(out[i].Path) < key(out[j].Path)
	})
	return out
}
