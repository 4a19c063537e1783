package artifact

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	paxXattr       = "SCHILY.xattr."
	maxLinks       = 40 // as the kernel's own limit while a path is resolved
)

// UnpackImageLayer applies one layer of an OCI image to dir, over the layers below it (OCI image
// specification, "Applying Changesets"): whiteouts remove, hard links and extended attributes are made, setuid
// bits and, as root, owners are kept. Device nodes and FIFOs are left out: a container gets its own /dev.
// Absolute links are the image's own affair; nothing is ever written through one to outside of dir.
func UnpackImageLayer(ctx context.Context, layer io.Reader, dir string, limits Limits) error {
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &imageUnpacker{root: root, own: os.Geteuid() == 0, here: map[string]bool{}, dirs: map[string]*tar.Header{}}
	_, err = eachEntry(ctx, layer, limits, func(h *tar.Header, r io.Reader) error {
		if err := u.entry(h, r); err != nil {
			return fmt.Errorf("unpack %.200q: %w", h.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return u.finishDirs()
}

type imageUnpacker struct {
	root *os.Root
	own  bool                   // owners are kept
	here map[string]bool        // what this layer has made; an opaque whiteout hides only what is below it
	dirs map[string]*tar.Header // folders' modes are set last, so that a read-only one can be filled
}

func (u *imageUnpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Name == "." {
		u.dirs["."] = h
		return nil
	}
	parent, err := u.resolve(path.Dir(h.Name))
	if err != nil {
		return err
	}
	base := path.Base(h.Name)
	if base == whiteoutOpaque {
		return u.opaque(parent)
	}
	if gone, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if gone == "" || gone == "." || gone == ".." {
			return &EntryError{h.Name, "it is a whiteout of nothing"}
		}
		if u.here[path.Join(parent, gone)] {
			return nil
		}
		return u.root.RemoveAll(path.Join(parent, gone))
	}
	name := path.Join(parent, base)
	for p := name; p != "."; p = path.Dir(p) {
		u.here[p] = true
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil
	case tar.TypeDir:
		return u.dir(name, h)
	}
	if err := u.root.RemoveAll(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(name, h, r)
	case tar.TypeSymlink:
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.chown(name, h)
	case tar.TypeLink:
		return u.hardlink(name, h)
	}
	return &EntryError{h.Name, "an image layer does not hold " + typeName(h.Typeflag)}
}

func (u *imageUnpacker) dir(name string, h *tar.Header) error {
	st, err := u.root.Lstat(name)
	switch {
	case err == nil && st.IsDir():
	case err == nil:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		fallthrough
	default:
		if err := u.root.Mkdir(name, 0o755); err != nil {
			return err
		}
	}
	u.dirs[name] = h
	return nil
}

func (u *imageUnpacker) file(name string, h *tar.Header, r io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	// The owner comes first: a change of it clears setuid bits and capabilities.
	if u.own {
		if err := f.Chown(h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(h.FileInfo().Mode()); err != nil {
		return err
	}
	if err := u.xattrs(f, h); err != nil {
		return err
	}
	return f.Close()
}

// xattrs sets the attributes that mean something to a program: capabilities and user attributes.
func (u *imageUnpacker) xattrs(f *os.File, h *tar.Header) error {
	for k, v := range h.PAXRecords {
		attr, ok := strings.CutPrefix(k, paxXattr)
		if !ok || (attr != "security.capability" && !strings.HasPrefix(attr, "user.")) {
			continue
		}
		err := unix.Fsetxattr(int(f.Fd()), attr, []byte(v), 0)
		if errors.Is(err, syscall.EPERM) && !u.own {
			continue // only root may give capabilities
		}
		if err != nil {
			return fmt.Errorf("set extended attribute %s: %w", attr, err)
		}
	}
	return nil
}

func (u *imageUnpacker) hardlink(name string, h *tar.Header) error {
	target, err := cleanName(strings.TrimPrefix(h.Linkname, "/"))
	if err != nil {
		return err
	}
	dir, err := u.resolve(path.Dir(target))
	if err != nil {
		return err
	}
	return u.root.Link(path.Join(dir, path.Base(target)), name)
}

func (u *imageUnpacker) opaque(dir string) error {
	f, err := u.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		p := path.Join(dir, n)
		if u.here[p] {
			// Made by this layer as well: what lies deeper may still be from below.
			if st, err := u.root.Lstat(p); err == nil && st.IsDir() {
				if err := u.opaque(p); err != nil {
					return err
				}
			}
			continue
		}
		if err := u.root.RemoveAll(p); err != nil {
			return err
		}
	}
	return nil
}

func (u *imageUnpacker) chown(name string, h *tar.Header) error {
	if !u.own {
		return nil
	}
	return u.root.Lchown(name, h.Uid, h.Gid)
}

func (u *imageUnpacker) finishDirs() error {
	for name, h := range u.dirs {
		st, err := u.root.Lstat(name)
		if err != nil || !st.IsDir() {
			continue // removed or replaced later in the layer
		}
		if err := u.chown(name, h); err != nil {
			return err
		}
		if err := u.root.Chmod(name, h.FileInfo().Mode()); err != nil {
			return err
		}
	}
	return nil
}

// resolve follows the symbolic links of a folder's path as they count inside the image, where / is its root,
// and makes what is missing. The result has no link in it.
func (u *imageUnpacker) resolve(dir string) (string, error) {
	done, links := ".", 0
	todo := strings.Split(dir, "/")
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..": // only out of a link's target; the root's parent is the root
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		st, err := u.root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(next, 0o755); err != nil {
				return "", err
			}
		case err != nil:
			return "", err
		case st.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", &EntryError{dir, "too many symbolic links on its path"}
			}
			target, err := u.root.Readlink(next)
			if err != nil {
				return "", err
			}
			if path.IsAbs(target) {
				done = "."
			}
			todo = append(strings.Split(target, "/"), todo...)
			continue
		case !st.IsDir():
			return "", &EntryError{dir, "a file stands where a folder is needed"}
		}
		done = next
	}
	return done, nil
}
