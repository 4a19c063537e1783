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

	"kingpost/internal/scratch"
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
	c := &Cache{dir}
	c.sweep()
	return c, nil
}

// Names of what is in the making in the cache, see package scratch.
const (
	cacheScratch = ".making-"
	aptScratch   = "run-" // below apt/SUITE-ARCH
)

// sweep removes what builds that were killed have left.
func (c *Cache) sweep() {
	for _, pattern := range []string{"*", "apt/*"} {
		dirs, err := filepath.Glob(c.path(pattern))
		if err != nil {
			continue
		}
		for _, d := range dirs {
			scratch.Sweep(d, cacheScratch)
			if pattern != "*" {
				scratch.Sweep(d, aptScratch)
			}
		}
	}
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
	tmp, err := scratch.Dir(c.path(kind), cacheScratch)
	if err != nil {
		return "", err
	}
	defer tmp.Remove()
	if err := tmp.File.Chmod(0o755); err != nil {
		return "", err
	}
	if err := fill(tmp.Path); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	if err := os.Rename(tmp.Path, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return "", err
	}
	return dir, nil
}

// has reports whether an item is there, and notes that it is of use.
func (c *Cache) has(kind, key string) bool {
	now := time.Now()
	return os.Chtimes(c.path(kind, key), now, now) == nil
}

// prune removes items that no build has used for long.
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
			if time.Since(st.ModTime()) > unusedItems && !strings.HasPrefix(i.Name(), cacheScratch) {
				scratch.RemoveTree(c.path(k.Name(), i.Name()))
			}
		}
	}
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
