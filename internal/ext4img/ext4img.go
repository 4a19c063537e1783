// Package ext4img makes the empty ext4 file system of the data partition, small, with room to be grown online to
// terabytes by EXT4_IOC_RESIZE_FS.
//
// It runs mke2fs(8) with everything pinned, as any user, so that every version of it from Debian 12 on makes what the
// node expects, and the same version the same bytes. It never mounts. Start with Make.
package ext4img

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kingpost/internal/child"
	"kingpost/internal/scratch"
)

// Label is the file system label of the data partition (at most 16 bytes).
const Label = "kingpost-data"

// Options pins the file system.
type Options struct {
	Size int64 // bytes, a multiple of BlockSize, at least MinSize
	UUID [16]byte
	// HashSeed seeds the directory hash.
	HashSeed [16]byte
	Time     time.Time // to the second, after 1970
}

// BlockSize is the file system's, in bytes: a page, and what a disk with 4096-byte sectors needs.
const BlockSize = 4096

// MinSize is the smallest size that holds the file system and its journal, in bytes.
const MinSize = 64 << 20

const (
	// features is the whole list, behind "none", so that no version's defaults decide. resize_inode keeps room for
	// group descriptors, so that the kernel grows it without moving anything; above maxGrown it turns to meta_bg by
	// itself. verity lets the host have the kernel check bundles; quota and project, with which the kernel needs the
	// module quota_v2 to mount it, let it limit what a volume holds.
	features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super," +
		"large_file,huge_file,dir_nlink,extra_isize,metadata_csum,verity,quota,project"

	// config takes the place of the machine's mke2fs.conf.
	config = "[defaults]\n\tblocksize = 4096\n\tinode_size = 256\n\thash_alg = half_md4\n\tenable_periodic_fsck = 0\n" +
		"\tdefault_mntopts = acl,user_xattr\n\tauto_64-bit_support = 0\n[fs_types]\n\text4 = {\n\t}\n"

	// journalMiB never grows, so it is what a disk of terabytes has too.
	journalMiB = 16

	// groupSize is the size of a block group, and groupInodes how many inodes each has, also those that growing
	// adds: one for 16 KiB.
	groupSize   = 8 * BlockSize * BlockSize
	groupInodes = 8192

	// maxGrown is up to which size descriptors are reserved, in bytes: 4 TiB, which costs 2 MiB.
	maxGrown = 4 << 40
)

// Make makes the file at path an image of a new file system. A file that is there is replaced; where it fails there is
// none. mke2fs writes zeros for journal and inode tables rather than leave that to the node: who copies the image
// may skip them only where the target is zeros already.
func Make(ctx context.Context, path string, o Options) error {
	if err := makeImage(ctx, path, o); err != nil {
		return fmt.Errorf("make ext4 image: %w", err)
	}
	return nil
}

func makeImage(ctx context.Context, path string, o Options) (err error) {
	switch {
	case o.Size < MinSize || o.Size%BlockSize != 0:
		return fmt.Errorf("the size %d is no multiple of %d from %d on", o.Size, BlockSize, MinSize)
	case o.Time.Unix() <= 0:
		return fmt.Errorf("the time %v is not after 1970", o.Time)
	case o.UUID == [16]byte{} || o.HashSeed == [16]byte{}:
		return fmt.Errorf("UUID and hash seed cannot be zero, mke2fs would make them up")
	}
	tool, err := find("mke2fs")
	if err != nil {
		return err
	}
	dir, err := scratch.Dir(os.TempDir(), "kingpost-ext4img-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	conf := filepath.Join(dir.Path, "mke2fs.conf")
	if err := os.WriteFile(conf, []byte(config), 0o600); err != nil {
		return err
	}
	if err := create(path, o.Size); err != nil {
		return err
	}
	groups := (o.Size + groupSize - 1) / groupSize
	extended := []string{
		"hash_seed=" + text(o.HashSeed),
		"root_owner=0:0", // not the builder's
		"quotatype=prjquota", "lazy_itable_init=0", "lazy_journal_init=0", "nodiscard",
		fmt.Sprintf("resize=%d", int64(maxGrown/BlockSize)),
	}
	cmd := child.Command(ctx, syscall.SIGKILL, tool, "-q", "-F", "-t", "ext4", "-O", features, "-b", fmt.Sprint(BlockSize), "-I", "256",
		"-N", fmt.Sprint(groups*groupInodes), "-J", fmt.Sprintf("size=%d", journalMiB), "-m", "1", "-e", "remount-ro",
		"-L", Label, "-U", text(o.UUID), "-o", "Linux", "-E", strings.Join(extended, ","), path)
	cmd.Env = []string{
		"MKE2FS_CONFIG=" + conf,
		fmt.Sprintf("E2FSPROGS_FAKE_TIME=%d", o.Time.Unix()),
		"LC_ALL=C", "TZ=UTC", "PATH=" + os.Getenv("PATH"),
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if strings.Contains(strings.ToLower(out.String()), syscall.ENOSPC.Error()) {
			err = fmt.Errorf("%w: %w", err, syscall.ENOSPC)
		}
		return errors.Join(fmt.Errorf("mke2fs: %w: %s", err, strings.TrimSpace(out.String())), os.Remove(path))
	}
	return nil
}

// create makes path an empty file of size bytes, all of them a hole.
func create(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// find looks for a tool where root's tools are too: an ordinary user's PATH has no sbin on Debian.
func find(tool string) (string, error) {
	if p, err := exec.LookPath(tool); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is missing; install the package e2fsprogs", tool)
}

// text is a UUID as people write it, in its plain byte order.
func text(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
