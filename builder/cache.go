package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Cache keeps what a build made, by what it was made from, so that the next one need not. Every item is a folder
// KIND/KEY that appears whole by one rename, so that builds may share a cache at any time.
type Cache struct{ dir string }

// unusedItems is how long an item is kept that no build asked for.
const unusedItems = 30 * 24 * time.Hour

// OpenCache opens the cache in dir, which is made where it is missing.
func OpenCache(dir string) (*Cache, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open the build cache: %w; KINGPOST_CACHE names another folder", err)
	}
	return &Cache{dir}, nil
}

// DefaultCacheDir is $KINGPOST_CACHE, else the user's cache folder.
func DefaultCacheDir() (string, error) {
	if d := os.Getenv("KINGPOST_CACHE"); d != "" {
		return d, nil
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no cache folder: %w; KINGPOST_CACHE names one", err)
	}
	return filepath.Join(d, "kingpost"), nil
}

func (c *Cache) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// item returns the folder kind/key, which fill has filled, now or in an earlier build.
func (c *Cache) item(ctx context.Context, kind, key string, fill func(dir string) error) (string, error) {
	dir := c.path(kind, key)
	if c.has(kind, key) {
		return dir, nil
	}
	if err := os.MkdirAll(c.path(kind), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(c.path(kind), ".new-")
	if err != nil {
		return "", err
	}
	defer removeTree(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return "", err
	}
	return dir, nil
}

// has reports whether an item is there, and notes that it is of use.
func (c *Cache) has(kind, key string) bool {
	now := time.Now()
	return os.Chtimes(c.path(kind, key), now, now) == nil
}

// prune removes items that no build has used for long, and what builds that were killed left behind.
func (c *Cache) prune() {
	kinds, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	for _, k := range kinds {
		if !k.IsDir() || k.Name() == "apt" {
			continue
		}
		items, err := os.ReadDir(c.path(k.Name()))
		if err != nil {
			continue
		}
		for _, i := range items {
			st, err := i.Info()
			if err != nil {
				continue
			}
			age := time.Since(st.ModTime())
			if age > unusedItems || (strings.HasPrefix(i.Name(), ".new-") && age > 24*time.Hour) {
				removeTree(c.path(k.Name(), i.Name()))
			}
		}
	}
}

// removeTree removes a folder with read-only ones in it.
func removeTree(dir string) {
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			if st, err := d.Info(); err == nil && st.Mode().Perm()&0o700 != 0o700 {
				os.Chmod(p, st.Mode().Perm()|0o700)
			}
		}
		return nil
	})
	os.RemoveAll(dir)
}

// lockFile takes the exclusive lock of a file for as long as it is not closed, and waits for it as long as ctx lets it.
func lockFile(ctx context.Context, name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
