package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/scratch"
)

// Names of the files that a build gives.
const (
	FileDisk    = "disk.img"     // raw GPT disk image, sparse
	FileRoot    = "root.img"     // root file system and its hash tree
	FileKernel  = "kernel"       // for a direct start
	FileInitrd  = "initrd"       // for a direct start
	FileCmdline = "cmdline"      // for a direct start
	FileRescue  = "rescue.efi"   // the rescue entry's UKI
	FileRelease = "release.json" // Result
	// FileMap is the disk image's block map, a bmap 2.0 file: who writes the image checks it by that without hashing its
	// zeros. `bmaptool copy` takes it too.
	FileMap = FileDisk + ".bmap"
)

// FileUKI is the name of a release's UKI.
func FileUKI(name string) string { return name + ".efi" }

// Files are the names of all files that a build of the recipe name gives where no outputs are asked for, sorted.
func Files(name string) []string {
	f := []string{FileRelease}
	for _, o := range Outputs() {
		if o.Info().Default {
			f = append(f, o.Files(name)...)
		}
	}
	slices.Sort(f)
	return f
}

// Result is release.json: what a build gave.
type Result struct {
	mesh.ReleaseInfo
	Kernel     string `json:"kernel"`     // the kernel's version
	RootHash   string `json:"rootHash"`   // hex
	HashOffset int64  `json:"hashOffset"` // bytes into root.img
	Cmdline    string `json:"cmdline"`
	// Room says how full the places are that a release has on a disk.
	Room []Room `json:"room,omitempty"`
	// Files lists everything beside release.json, with slashes.
	Files []ResultFile `json:"files"`
}

// ResultFile is one file of a build.
type ResultFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // bytes
	SHA256 string `json:"sha256"` // hex
}

// output is a build's folder in the making. It lies beside its final place under a name that nobody takes for whole,
// and is locked for as long as its build lives.
type output struct {
	final, dir string
	held       *scratch.Held
}

const tempPrefix = ".building-"

// newOutput makes the folder for a build of final, and removes those that killed builds have left.
func newOutput(final string) (*output, error) {
	final, err := filepath.Abs(final)
	if err != nil {
		return nil, err
	}
	parent := filepath.Dir(final)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	if st, err := os.Lstat(final); err == nil {
		if !st.IsDir() {
			return nil, fmt.Errorf("%s is there and is no folder: a build's output would go there", final)
		}
		if _, err := os.Stat(filepath.Join(final, FileRelease)); err != nil && !emptyDir(final) {
			return nil, fmt.Errorf("%s is there and is no build's output (it has no %s): it is not overwritten", final, FileRelease)
		}
	}
	// Those that killed builds have left go, also of other recipes.
	scratch.Sweep(parent, tempPrefix)
	held, err := scratch.Dir(parent, tempPrefix+filepath.Base(final)+"-")
	if err != nil {
		return nil, err
	}
	o := &output{final: final, dir: held.Path, held: held}
	if err := held.File.Chmod(0o755); err != nil {
		return nil, errors.Join(err, o.discard())
	}
	return o, nil
}

func emptyDir(dir string) bool {
	names, err := os.ReadDir(dir)
	return err == nil && len(names) == 0
}

func (o *output) path(name string) string { return filepath.Join(o.dir, name) }

// discard removes what was made so far.
func (o *output) discard() error { return o.held.Remove() }

// commit puts the folder in its place by one step: who looks there finds the old build or the new one, whole.
func (o *output) commit() error {
	if err := syncTree(o.dir); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, o.dir, unix.AT_FDCWD, o.final, unix.RENAME_EXCHANGE)
	switch {
	case err == nil: // o.dir is the old build now
		scratch.RemoveTree(o.dir)
	case errors.Is(err, unix.ENOENT):
		if err := os.Rename(o.dir, o.final); err != nil {
			return err
		}
	default: // a file system that cannot exchange
		old := o.dir + ".old"
		if err := os.Rename(o.final, old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Rename(o.dir, o.final); err != nil {
			return err
		}
		scratch.RemoveTree(old)
	}
	return o.held.Release()
}

// syncTree brings a folder's files to the disk before it is called whole.
func syncTree(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(names)+1)
	for i, n := range names {
		sync := syncFile
		if n.IsDir() {
			sync = syncTree
		}
		wg.Go(func() { errs[i] = sync(filepath.Join(dir, n.Name())) })
	}
	wg.Wait()
	errs[len(names)] = syncFile(dir)
	return errors.Join(errs...)
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// workDir is the folder, inside the one in the making, of what outputs are made of and is no output itself.
const workDir = ".work"

// files lists the files of the folder, with slashes, without those of workDir.
func (o *output) files() ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(o.dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name == workDir:
			return fs.SkipDir
		case !d.IsDir():
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// describe hashes every file of the folder, removes workDir and writes release.json, last. Meanwhile it writes FileMap by
// writeMap, which reads the disk image as hashing does; nil where there is to be none.
func (o *output) describe(ctx context.Context, res *Result, writeMap func(context.Context, string) error) error {
	names, err := o.files()
	if err != nil {
		return err
	}
	if writeMap != nil {
		names = append(names, FileMap)
	}
	slices.Sort(names)
	res.Files = make([]ResultFile, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() {
			if n == FileMap && writeMap != nil {
				if errs[i] = writeMap(ctx, o.path(n)); errs[i] != nil {
					return
				}
			}
			sum, size, err := hashFile(ctx, o.path(n))
			res.Files[i], errs[i] = ResultFile{n, size, sum}, err
		})
	}
	wg.Wait()
	if err := errors.Join(append(errs, os.RemoveAll(o.path(workDir)))...); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.path(FileRelease), append(raw, '\n'), 0o644)
}

// noSpace marks the failure of another program as one of a full disk, where what it said tells so.
func noSpace(err error, said string) error {
	if strings.Contains(strings.ToLower(said), "no space left on device") || strings.Contains(strings.ToLower(said), "disk quota exceeded") {
		return &fullDiskError{err}
	}
	return err
}

type fullDiskError struct{ err error }

func (e *fullDiskError) Error() string   { return e.err.Error() }
func (e *fullDiskError) Unwrap() []error { return []error{e.err, syscall.ENOSPC} }

// explain adds what to do to errors that come from the machine and not from what was asked.
func explain(err error, out, cache string) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w\nThe disk is full: free some space at %s, at the cache %s or at %s, or use --out, KINGPOST_CACHE or TMPDIR to build elsewhere. Nothing was put in place", err, out, cache, os.TempDir())
	case errors.Is(err, syscall.EACCES) && !strings.Contains(err.Error(), "apt"):
		return fmt.Errorf("%w\nBuilds need no root, but a folder for the output (--out) and for the cache (KINGPOST_CACHE) that they may write to", err)
	}
	return err
}
