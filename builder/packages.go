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

	"kingpost/internal/child"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/scratch"
)

// packages gets locked packages: from the cache, from a folder that was given, or through apt, in this order.
type packages struct {
	cache  *Cache
	apt    func() (*apt, error) // only asked when something must be fetched
	folder string               // of .deb files; may be empty
	relock string               // the command that writes the lock anew, for messages
}

// fetch makes sure that all debs are in the cache, each by its digest.
func (p *packages) fetch(ctx context.Context, debs []LockedDeb, phase Phase) error {
	var missing []LockedDeb
	for _, d := range debs {
		if p.cache.has("deb", d.SHA256) {
			if st, err := os.Stat(filepath.Join(p.cache.path("deb", d.SHA256), "package.deb")); err == nil && st.Size() != d.Size {
				return fmt.Errorf("package %s: the lock says %d bytes, the package with its sha256 has %d: the lock was changed by hand.\nTo write it anew: %s", d, d.Size, st.Size(), p.relock)
			}
			continue
		}
		found, err := p.fromFolder(ctx, d)
		if err != nil {
			return err
		}
		if !found {
			missing = append(missing, d)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	a, err := p.apt()
	if err != nil {
		return fmt.Errorf("fetch %s: %w", missing[0], err)
	}
	if err := a.update(ctx, 24*time.Hour); err != nil {
		return err
	}
	var total, done int64
	for _, d := range missing {
		total += d.Size
	}
	for _, d := range missing {
		phase.Progress(done, total)
		if err := p.fetchOne(ctx, a, d); err != nil {
			return err
		}
		done += d.Size
	}
	return nil
}

func (p *packages) fetchOne(ctx context.Context, a *apt, d LockedDeb) error {
	_, err := p.cache.item(ctx, "deb", d.SHA256, func(dir string) error {
		err := a.download(ctx, dir, d)
		var full *spaceError
		if errors.As(err, &full) {
			return fmt.Errorf("fetch %s: %w", d, err)
		}
		if err != nil && ctx.Err() == nil {
			// The lists may be older than a mirror's last change.
			if err = a.update(ctx, 0); err == nil {
				err = a.download(ctx, dir, d)
			}
		}
		if err != nil && a.noSecurity && ctx.Err() == nil {
			if e := a.addSecurity(ctx); e != nil {
				err = fmt.Errorf("%w\nThis machine's apt sources have no %s-security, and none was found beside them: %w", err, a.suite, e)
			} else {
				err = a.download(ctx, dir, d)
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			return fmt.Errorf("the locked package %s is not to be had: %w\nA mirror drops old versions. Give the file %s with --debs FOLDER, or take today's version: %s",
				d, err, d.FileName(), p.relock)
		}
		return p.check(ctx, d, dir)
	})
	return err
}

// check makes sure that dir holds the one file that d is.
func (p *packages) check(ctx context.Context, d LockedDeb, dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(names) != 1 {
		return fmt.Errorf("fetch %s: got %d files", d, len(names))
	}
	if err := p.checkFile(ctx, d, names[0]); err != nil {
		return err
	}
	return os.Rename(names[0], filepath.Join(dir, "package.deb"))
}

func (p *packages) checkFile(ctx context.Context, d LockedDeb, name string) error {
	sum, size, err := hashFile(ctx, name)
	if err != nil {
		return err
	}
	if sum != d.SHA256 || size != d.Size {
		return fmt.Errorf("package %s: the lock wants sha256 %s (%d bytes), %s has %s (%d bytes): it is not the package that was locked.\nTo take it all the same: %s",
			d, d.SHA256, d.Size, name, sum, size, p.relock)
	}
	return nil
}

func (p *packages) fromFolder(ctx context.Context, d LockedDeb) (bool, error) {
	if p.folder == "" {
		return false, nil
	}
	name := filepath.Join(p.folder, d.FileName())
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := p.checkFile(ctx, d, name); err != nil {
		return false, err
	}
	_, err := p.cache.item(ctx, "deb", d.SHA256, func(dir string) error {
		return copyFile(ctx, filepath.Join(dir, "package.deb"), name)
	})
	return err == nil, err
}

func copyFile(ctx context.Context, dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, ctxReader{ctx, in})
	return errors.Join(err, out.Close())
}

// tree returns the folder with a package's files. Owners and setuid bits are not in it: what goes into a root is
// chosen file by file.
func (p *packages) tree(ctx context.Context, d LockedDeb) (string, error) {
	dir, err := p.cache.item(ctx, "tree", d.SHA256, func(dir string) error {
		deb := filepath.Join(p.cache.path("deb", d.SHA256), "package.deb")
		// The cache is on disk for long: what is unpacked from it is checked once more.
		if err := p.checkFile(ctx, d, deb); err != nil {
			scratch.RemoveTree(p.cache.path("deb", d.SHA256))
			return fmt.Errorf("%w\nThe damaged file was taken out of the cache: run the build again", err)
		}
		return extractDeb(ctx, deb, dir)
	})
	if err != nil {
		return "", fmt.Errorf("unpack package %s: %w", d, err)
	}
	return dir, nil
}

// extractDeb unpacks a package's files. dpkg-deb is on every machine that has apt, and is many times as fast at
// xz as what Go has.
func extractDeb(ctx context.Context, deb, dir string) error {
	cmd := child.Command(ctx, syscall.SIGKILL, "dpkg-deb", "--fsys-tarfile", deb)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = artifact.UnpackImageLayer(ctx, out, dir, artifact.Limits{})
	out.Close()
	werr := cmd.Wait()
	if err != nil {
		return err
	}
	if werr != nil {
		return noSpace(fmt.Errorf("dpkg-deb: %w: %s", werr, tail(errs.String(), 5)), errs.String())
	}
	return nil
}

// inTree opens a file of an unpacked package, where lib and usr/lib, bin and usr/bin are one.
func inTree(dir string, names ...string) (string, error) {
	for _, n := range names {
		for _, candidate := range []string{n, strings.TrimPrefix(n, "usr/")} {
			if found, err := filepath.Glob(filepath.Join(dir, candidate)); err == nil && len(found) == 1 {
				return found[0], nil
			}
		}
	}
	return "", fmt.Errorf("%s is not in the package", strings.Join(names, " or "))
}
