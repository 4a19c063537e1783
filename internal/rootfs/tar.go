package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// TarFilter decides about one member of an archive: the path to put it at, and whether to keep it at all.
type TarFilter func(h *tar.Header) (p string, keep bool)

// xattrPrefix marks extended attributes among a tar's PAX records, as GNU tar and dpkg write them.
const xattrPrefix = "SCHILY.xattr."

// AddTar adds the members of an uncompressed tar: owners, setuid bits and capabilities (SCHILY.xattr records) as the
// archive has them, hard links as further names for the same content. filter may be nil, which keeps everything
// under its own name. Contents go to the tree's spool. A device, FIFO or socket is an error.
func (t *Tree) AddTar(ctx context.Context, r io.Reader, filter TarFilter) error {
	tr := tar.NewReader(r)
	// A hard link names its target as the archive does, whatever the filter made of that name; what was
	// dropped is kept here too, since a link to it may not be.
	byName := map[string]Entry{}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
		name, err := clean(h.Name)
		if err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
		p, keep := h.Name, true
		if filter != nil {
			p, keep = filter(h)
		}
		e, err := t.tarEntry(h, tr, keep, byName)
		if err != nil {
			return fmt.Errorf("read tar: %s: %w", h.Name, err)
		}
		if e == nil {
			continue
		}
		byName[name] = *e
		if !keep {
			continue
		}
		e.Path = p
		if err := t.Add(*e); err != nil {
			return fmt.Errorf("read tar: %w", err)
		}
	}
}

// tarEntry makes an entry of a member; nil for what is no member of a file system. The content of a regular file
// is spooled where it is kept; a dropped one's is not, and a link to it fails when it is opened.
func (t *Tree) tarEntry(h *tar.Header, tr io.Reader, keep bool, byName map[string]Entry) (*Entry, error) {
	e := &Entry{Mode: h.FileInfo().Mode() &^ fs.ModeType, UID: h.Uid, GID: h.Gid}
	for k, v := range h.PAXRecords {
		if name, ok := strings.CutPrefix(k, xattrPrefix); ok {
			if e.Xattrs == nil {
				e.Xattrs = map[string]string{}
			}
			e.Xattrs[name] = v
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Size = h.Size
		if !keep {
			e.Open = func() (io.ReadCloser, error) {
				return nil, fmt.Errorf("the content of %s was dropped from its archive, but a hard link to it was kept", h.Name)
			}
			return e, nil
		}
		var err error
		e.Open, err = t.spoolIn(tr, h.Size)
		return e, err
	case tar.TypeDir:
		e.Mode |= fs.ModeDir
	case tar.TypeSymlink:
		e.Mode |= fs.ModeSymlink
		e.Link = h.Linkname
	case tar.TypeLink:
		target, err := clean(h.Linkname)
		if err != nil {
			return nil, err
		}
		old, ok := byName[target]
		if !ok || old.Mode.IsDir() {
			return nil, fmt.Errorf("it is a hard link to %q, which is no file before it in the archive", h.Linkname)
		}
		return &old, nil
	case tar.TypeXGlobalHeader:
		return nil, nil
	default:
		return nil, fmt.Errorf("type %q is none that a root holds: directory, file or link", h.Typeflag)
	}
	return e, nil
}

// spoolIn copies n bytes of r to the spool and returns how to read them back.
func (t *Tree) spoolIn(r io.Reader, n int64) (func() (io.ReadCloser, error), error) {
	if t.spool == nil {
		b, err := io.ReadAll(io.LimitReader(r, n))
		if err == nil && int64(len(b)) != n {
			err = io.ErrUnexpectedEOF
		}
		return openBytes(b), err
	}
	at := t.used
	if _, err := io.CopyN(io.NewOffsetWriter(t.spool, at), r, n); err != nil {
		return nil, err
	}
	t.used += n
	return func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(t.spool, at, n)), nil
	}, nil
}
