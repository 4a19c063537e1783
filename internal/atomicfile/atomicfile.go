// Package atomicfile writes small state files so that a power cut leaves either the old content or
// the new one, never a mixture and never an empty file.
//
// It never appends and never locks: two writers of one path race, and one of them wins whole. Start
// with Write.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// prefix marks the files that are being written; after a cut they are leftovers, see Clean.
const prefix = ".kingpost-tmp-"

// Write replaces the file at path by data with exactly the permissions perm, whatever the umask is:
// written aside in the same folder, synced, renamed over path, and the folder synced. The folder must
// exist. After an error path is what it was before, except where the last sync failed: then the new
// content is in place but may be lost in a power cut.
func Write(path string, data []byte, perm os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, prefix+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	tmp := f.Name()
	if err := fill(f, data, perm); err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncDir(dir)
}

// fill writes, sets the mode and syncs before the rename, so that the new name never points at
// blocks that are not on disk yet.
func fill(f *os.File, data []byte, perm os.FileMode) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Remove removes the file at path and syncs its folder; a file that is not there is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes what was created, renamed or removed in dir last through a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	err = d.Sync()
	if err := errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

// Clean removes what writes that were cut off have left in dir. Only the one owner of dir may call
// it, before it starts to write there.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("clean folder %s: %w", dir, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("clean folder %s: %w", dir, err)
			}
		}
	}
	return nil
}

// PrivateDir makes dir a folder that only its owner may look into, and removes what writes that were cut off have left
// in it. On a file system that takes no writes a folder that is there stays as it is: to read from it is what is left.
func PrivateDir(dir string) error {
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// An earlier umask or a careless copy may have left it open.
	if err := os.Chmod(dir, 0o700); err != nil && !errors.Is(err, syscall.EROFS) {
		return err
	}
	if err := Clean(dir); err != nil && !errors.Is(err, syscall.EROFS) {
		return err
	}
	return nil
}
