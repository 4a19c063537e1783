package builderd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Bounds of one build.
const (
	maxFiles     = 4096
	maxUnpacked  = 1 << 30 // bytes of content out of a blob
	maxBlob      = 512 << 20
	workDir      = "work"
	recordsFile  = "builds.json"
	keepBuilds   = 1000
	maxRecords   = 4 << 20 // bytes of the file
	defaultFiles = 0o644
)

// Store is the artifact store as the builder uses it; *artifact.Client is one.
type Store interface {
	artifact.Source
	Push(ctx context.Context, a *artifact.Artifact, opts ...artifact.PushOption) error
}

// Builder makes bundles. Make it by Open; no two may have one folder open.
type Builder struct {
	dir   string
	store Store
	now   func() time.Time
	mu    sync.Mutex // one build at a time: packing takes memory
	log   records
}

// Open opens the builder with its state in dir. What an interrupted build left there goes.
func Open(dir string, store Store, now func() time.Time) (*Builder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, workDir)); err != nil {
		return nil, fmt.Errorf("remove what an interrupted build left: %w", err)
	}
	b := &Builder{dir: dir, store: store, now: now}
	if err := b.log.open(filepath.Join(dir, recordsFile)); err != nil {
		return nil, err
	}
	return b, nil
}

// Check looks whether the state folder is there.
func (b *Builder) Check(context.Context) error {
	_, err := os.ReadDir(b.dir)
	return err
}

// checkBuild validates what can be without reading a blob.
func checkBuild(p *verbs.BuildParams) error {
	if err := mesh.CheckName(p.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if err := mesh.CheckName(p.Arch); err != nil || strings.Contains(p.Arch, "-") {
		return fmt.Errorf("arch: %.40q is no architecture such as amd64 or arm64", p.Arch)
	}
	if !goodVersion(p.Version) {
		return fmt.Errorf("version: %.80q: 1 to 64 of [A-Za-z0-9._-] are needed, starting with a letter or digit", p.Version)
	}
	switch {
	case len(p.Files) > 0 && p.Blob != "":
		return errors.New("files and blob: give one of them")
	case len(p.Files) > 0:
		return checkFiles(p.Files)
	case p.Blob == "":
		return errors.New("files or blob: give one of them")
	}
	if err := mesh.CheckDigest(p.Blob); err != nil {
		return fmt.Errorf("blob: %w", err)
	}
	if p.BlobSize <= 0 || p.BlobSize > maxBlob {
		return fmt.Errorf("blobSize: %d is not between 1 and %d bytes", p.BlobSize, maxBlob)
	}
	return nil
}

func goodVersion(v string) bool {
	if v == "" || len(v) > 64 {
		return false
	}
	for i, c := range v {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

func checkFiles(files []verbs.BuildFile) error {
	if len(files) > maxFiles {
		return fmt.Errorf("files: %d of them, at most %d are allowed; push a tar as blob", len(files), maxFiles)
	}
	total, paths := 0, make(map[string]bool, len(files))
	for i, f := range files {
		if paths[f.Path] {
			return fmt.Errorf("files[%d].path: %.100q is given twice", i, f.Path)
		}
		paths[f.Path] = true
		if f.Path == "" || path.Clean(f.Path) != f.Path || path.IsAbs(f.Path) || f.Path == "." || f.Path == ".." || strings.HasPrefix(f.Path, "../") || strings.ContainsAny(f.Path, "\\\x00") {
			return fmt.Errorf("files[%d].path: %.100q is no clean relative path inside the bundle", i, f.Path)
		}
		if total += len(f.Content); total > verbs.MaxBuildInline {
			return fmt.Errorf("files: they have more than %d bytes together; push a tar as blob", verbs.MaxBuildInline)
		}
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if paths[dir] {
				return fmt.Errorf("files: %.100q is a file, and %.100q lies in it", dir, f.Path)
			}
		}
	}
	return nil
}

// Build makes a bundle, pushes it and records it.
func (b *Builder) Build(ctx context.Context, by string, p *verbs.BuildParams) (*verbs.BuildRecord, error) {
	if err := checkBuild(p); err != nil {
		return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// What packing took is given back at once: on the smallest nodes nobody else could have it.
	defer debug.FreeOSMemory()
	work := filepath.Join(b.dir, workDir)
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, fmt.Errorf("make the build's folder: %w", err)
	}
	rec, err := b.build(ctx, work, by, p)
	if rmErr := os.RemoveAll(work); rmErr != nil {
		err = errors.Join(err, fmt.Errorf("remove the build's folder: %w", rmErr))
	}
	return rec, err
}

func (b *Builder) build(ctx context.Context, work, by string, p *verbs.BuildParams) (*verbs.BuildRecord, error) {
	files, err := b.gather(ctx, work, p)
	if err != nil {
		return nil, err
	}
	if err := checkCommand(files, p); err != nil {
		return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
	}
	a, layer, err := pack(ctx, filepath.Join(work, "layer"), files, p)
	if err != nil {
		return nil, err
	}
	standing, err := b.store.Resolve(ctx, a.Ref, a.Tag)
	switch {
	case err == nil && standing.Digest != a.Desc.Digest:
		return nil, seat.Errorf(mesh.CodeConflict, "%s:%s stands in the store as %s, and these files make %s: give them another version", a.Ref, a.Tag, standing.Digest, a.Desc.Digest)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, seat.Errorf(mesh.CodeUnavailable, "ask the store for %s:%s: %v", a.Ref, a.Tag, err)
	}
	if err := b.store.Push(ctx, a); err != nil {
		return nil, fmt.Errorf("push %s:%s: %w", a.Ref, a.Tag, err)
	}
	rec := verbs.BuildRecord{
		Name: p.Name, Version: p.Version, Arch: p.Arch, Tag: a.Tag, Digest: string(a.Desc.Digest),
		Files: len(layer.Files), Size: layer.Size, At: b.now().UTC(), By: by,
	}
	return b.log.add(rec)
}

// gather makes the list of files out of what was given.
func (b *Builder) gather(ctx context.Context, work string, p *verbs.BuildParams) ([]artifact.File, error) {
	if p.Blob == "" {
		var files []artifact.File
		for _, f := range p.Files {
			mode := uint32(defaultFiles)
			if f.Executable {
				mode = 0o755
			}
			files = append(files, artifact.File{Path: f.Path, Mode: mode, Size: int64(len(f.Content)), Open: func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(f.Content)), nil
			}})
		}
		return files, nil
	}
	kind, name, _ := strings.Cut(verbs.BuildInputRepository, "/")
	rc, err := b.store.Blob(ctx, mesh.Ref{Kind: mesh.ArtifactKind(kind), Name: name}, p.Blob, p.BlobSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, seat.Errorf(mesh.CodeNotFound, "blob %s is not in the store's repository %s: push it there first", p.Blob, verbs.BuildInputRepository)
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", p.Blob, err)
	}
	defer rc.Close()
	dir := filepath.Join(work, "files")
	if err := artifact.Unpack(ctx, rc, dir, artifact.Limits{Bytes: maxUnpacked, Entries: maxFiles}); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, seat.Errorf(mesh.CodeNotFound, "blob %s is not in the store's repository %s: push it there first", p.Blob, verbs.BuildInputRepository)
		}
		return nil, fmt.Errorf("unpack blob %s: %w", p.Blob, err)
	}
	return walk(dir)
}

// walk lists what was unpacked.
func walk(dir string) ([]artifact.File, error) {
	var files []artifact.File
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(name)
			files = append(files, artifact.File{Path: rel, Link: target})
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		mode := uint32(defaultFiles)
		if fi.Mode()&0o111 != 0 {
			mode = 0o755
		}
		f, err := artifact.FileFromDisk(rel, name, mode)
		files = append(files, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list what was unpacked: %w", err)
	}
	return files, nil
}

// checkCommand refuses a bundle that a process could not run.
func checkCommand(files []artifact.File, p *verbs.BuildParams) error {
	command := p.Command
	if command == "" {
		command = "bin/" + p.Name
	}
	if _, err := artifact.CheckProgram(files, command, p.Arch); err != nil {
		return fmt.Errorf("the program that the bundle is to run: %w; add it or name another one as command", err)
	}
	return nil
}

// pack makes the bundle; its layer lies in spool until it is pushed.
func pack(ctx context.Context, spool string, files []artifact.File, p *verbs.BuildParams) (*artifact.Artifact, *artifact.Layer, error) {
	f, err := os.OpenFile(spool, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("pack %s: %w", p.Name, err)
	}
	epoch := time.Unix(0, 0).UTC()
	layer, err := artifact.PackLayer(ctx, f, files, epoch)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, nil, fmt.Errorf("pack %s: %w", p.Name, err)
	}
	a, err := artifact.NewBundle(p.Name, artifact.Origin{Version: p.Version, Arch: p.Arch, Created: epoch}, layer,
		func(context.Context) (io.ReadCloser, error) { return os.Open(spool) })
	if err != nil {
		return nil, nil, fmt.Errorf("make the bundle %s: %w", p.Name, err)
	}
	return a, layer, nil
}
