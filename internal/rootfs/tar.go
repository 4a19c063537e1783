package rootfs

import (
	"context"
	"errors"
	"io"
)

// AddTar adds the members of an uncompressed tar: owners, setuid bits and capabilities (SCHILY.xattr records) as the
// archive has them, hard links as copies. filter may be nil, which keeps everything under its own name. Contents
// go to the tree's spool.
func (t *Tree) AddTar(ctx context.Context, r io.Reader, filter TarFilter) error {
	return errors.ErrUnsupported
}
