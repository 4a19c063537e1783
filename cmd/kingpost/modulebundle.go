package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/internal/scratch"
)

// pusher brings artifacts into the store.
type pusher struct {
	client *hostapi.Client
	err    io.Writer
	dry    bool
}

func (p *pusher) store() *artifact.Client {
	return &artifact.Client{HTTP: p.client.HTTP(), Base: p.client.BaseURL()}
}

// unversioned is the version of what comes from a manifest without one.
const unversioned = "0.0.0"

func origin(m *mesh.Manifest, arch string) artifact.Origin {
	version := m.Version
	if version == "" {
		version = unversioned
	}
	// No clock: the same files give the same bundle, so that a push again changes nothing.
	return artifact.Origin{Version: version, Arch: arch, Created: time.Unix(0, 0).UTC()}
}

// module brings the manifest itself into the store, where the catalogue finds it.
func (p *pusher) module(ctx context.Context, m *mesh.Manifest) error {
	raw, err := manifestJSON(m)
	if err != nil {
		return err
	}
	a, err := artifact.NewModule(m.Module, origin(m, ""), raw)
	if err != nil {
		return err
	}
	if err := p.store().Push(ctx, a); err != nil {
		return fmt.Errorf("bring the manifest into the store: %w", err)
	}
	return nil
}

func manifestJSON(m *mesh.Manifest) ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the manifest of %s: %w", m.Module, err)
	}
	return append(b, '\n'), nil
}

func (p *pusher) bundles(ctx context.Context, m *mesh.Manifest, sources map[string]string, arch string) (mesh.Digests, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	if arch == "" {
		n, err := p.client.Node(ctx)
		if err != nil {
			return nil, err
		}
		arch = n.Release.Architecture
	}
	if err := p.checkArch(ctx, arch); err != nil {
		return nil, err
	}
	// All are looked at before the first is brought into the store.
	packed := map[string][]artifact.File{}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		files, err := p.files(m, name, sources[name], arch)
		if err != nil {
			return nil, fmt.Errorf("bundle %s from %s: %w", name, sources[name], err)
		}
		packed[name] = files
	}
	digests := mesh.Digests{}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		file := sources[name]
		d, err := p.bundle(ctx, m, name, packed[name], arch)
		if err != nil {
			return nil, fmt.Errorf("bundle %s from %s: %w", name, file, err)
		}
		digests[mesh.Ref{Kind: mesh.ArtifactBundle, Name: name}.String()] = map[string]string{arch: d}
	}
	return digests, nil
}

// checkArch refuses an architecture that no node of the mesh has.
func (p *pusher) checkArch(ctx context.Context, arch string) error {
	var nodes []verbs.NodeStatus
	if err := p.client.Call(ctx, mesh.SeatController, verbs.Nodes, nil, &nodes); err != nil {
		return fmt.Errorf("ask for the architectures of the mesh's nodes: %w", err)
	}
	have := map[string]bool{}
	for _, n := range nodes {
		have[n.Arch] = true
	}
	if !have[arch] {
		return refusedError("--arch %s: no node of the mesh has this architecture; the nodes have %s. Nothing was stored", arch, strings.Join(slices.Sorted(maps.Keys(have)), ", "))
	}
	return nil
}

// files lists the files of one bundle, and checks the programs that m starts from it.
func (p *pusher) files(m *mesh.Manifest, name, file, arch string) ([]artifact.File, error) {
	files, err := bundleFiles(name, file)
	if err != nil {
		return nil, err
	}
	for i := range m.Resources {
		r := &m.Resources[i]
		if r.Type != mesh.KindProcess || r.Bundle != name {
			continue
		}
		program := r.Command
		if program == "" {
			program = path.Join("bin", name)
		}
		warning, err := artifact.CheckProgram(files, program, arch)
		if err != nil {
			return nil, fmt.Errorf("the program of %s/%s: %w", m.Module, r.ID, err)
		}
		if warning != "" {
			fmt.Fprintf(p.err, "bundle %s: warning: the program of %s/%s: %s\n", name, m.Module, r.ID, warning)
		}
	}
	return files, nil
}

// bundle packs one bundle aside and pushes it; it returns its digest.
func (p *pusher) bundle(ctx context.Context, m *mesh.Manifest, name string, files []artifact.File, arch string) (digest string, err error) {
	tmp, err := scratch.File(os.TempDir(), "kingpost-bundle-")
	if err != nil {
		return "", err
	}
	defer tmp.Remove()
	o := origin(m, arch)
	layer, err := artifact.PackLayer(ctx, tmp.File, files, o.Created)
	if err != nil {
		return "", err
	}
	a, err := artifact.NewBundle(name, o, layer, func(context.Context) (io.ReadCloser, error) { return os.Open(tmp.Path) })
	if err != nil {
		return "", err
	}
	digest = string(a.Desc.Digest)
	if p.dry {
		return digest, nil
	}
	if err := p.store().Push(ctx, a); err != nil {
		return "", err
	}
	fmt.Fprintf(p.err, "bundle %s: %d files, %s, %s\n", name, len(files), size(layer.Size), digest)
	return digest, nil
}

// bundleFiles lists what goes into a bundle: one program, or all regular files and links of a folder.
func bundleFiles(name, file string) ([]artifact.File, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		f, err := artifact.FileFromDisk(path.Join("bin", name), file, 0o755)
		return []artifact.File{f}, err
	}
	var files []artifact.File
	err = filepath.WalkDir(file, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(file, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch d.Type() {
		case 0:
			st, err := d.Info()
			if err != nil {
				return err
			}
			mode := uint32(0o644)
			if st.Mode()&0o111 != 0 {
				mode = 0o755
			}
			f, err := artifact.FileFromDisk(rel, p, mode)
			files = append(files, f)
			return err
		case fs.ModeSymlink:
			to, err := os.Readlink(p)
			files = append(files, artifact.File{Path: rel, Link: to})
			return err
		}
		return fmt.Errorf("%s is a %s; a bundle holds regular files and links", rel, d.Type())
	})
	return files, err
}
