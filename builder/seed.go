package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// layerForm changes whenever PackLayer's bytes do.
const layerForm = "1"

// packProgram makes the layer with a program at bin/NAME, or takes it from the cache: compressing is the slowest part
// of a build, and most programs do not change.
func packProgram(ctx context.Context, cache *Cache, b binary, mtime time.Time) (*artifact.Layer, string, error) {
	key := hashStrings(layerForm, b.Name, b.SHA256, mtime.UTC().Format(time.RFC3339))
	dir, err := cache.item(ctx, "layer", key, func(dir string) error {
		f, err := artifact.FileFromDisk("bin/"+b.Name, b.File, 0o755)
		if err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(dir, "blob"))
		if err != nil {
			return err
		}
		l, err := artifact.PackLayer(ctx, out, []artifact.File{f}, mtime)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
		if l.Files[0].SHA256 != b.SHA256 {
			return fmt.Errorf("%s in the cache is damaged: remove %s", b.Name, filepath.Dir(b.File))
		}
		raw, err := json.Marshal(l)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "layer.json"), raw, 0o644)
	})
	if err != nil {
		return nil, "", fmt.Errorf("pack %s: %w", b.Name, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "layer.json"))
	if err != nil {
		return nil, "", err
	}
	var l artifact.Layer
	if err := json.Unmarshal(raw, &l); err != nil {
		return nil, "", fmt.Errorf("%s: %w", dir, err)
	}
	return &l, filepath.Join(dir, "blob"), nil
}

// seedInputs is what a seed is made of.
type seedInputs struct {
	plan       *seedPlan
	components map[string]binary
	thirdParty map[string]binary
	version    string
	arch       string
	time       time.Time
}

// writeSeed writes the seed into dir, an OCI image layout with every component as bundle and image over the same
// layer, every third-party program as an image, and every module; then it is read back whole.
func writeSeed(ctx context.Context, cache *Cache, dir string, in seedInputs, phase Phase) error {
	w, err := artifact.NewLayoutWriter(dir)
	if err != nil {
		return err
	}
	origin := artifact.Origin{Version: in.version, Arch: in.arch, Created: in.time}
	total, done := int64(len(in.components)+len(in.thirdParty)), int64(0)
	for _, name := range slices.Sorted(maps.Keys(in.components)) {
		l, blob, err := packProgram(ctx, cache, in.components[name], in.time)
		if err != nil {
			return err
		}
		open := func(context.Context) (io.ReadCloser, error) { return os.Open(blob) }
		bundle, err := artifact.NewBundle(name, origin, l, open)
		if err != nil {
			return err
		}
		image, err := artifact.NewImage(name, origin, artifact.ImageConfig{Entrypoint: []string{"/bin/" + name}, WorkingDir: "/"}, l, open)
		if err != nil {
			return err
		}
		if err := errors.Join(w.Add(ctx, bundle), w.Add(ctx, image)); err != nil {
			return err
		}
		done++
		phase.Progress(done, total)
	}
	for _, name := range slices.Sorted(maps.Keys(in.thirdParty)) {
		t := in.plan.thirdParty[name]
		l, blob, err := packProgram(ctx, cache, in.thirdParty[name], in.time)
		if err != nil {
			return err
		}
		o := origin
		o.Version = t.Version
		image, err := artifact.NewImage(name, o, artifact.ImageConfig{Entrypoint: []string{"/bin/" + t.Program}, Cmd: t.Cmd, WorkingDir: "/"}, l,
			func(context.Context) (io.ReadCloser, error) { return os.Open(blob) })
		if err != nil {
			return err
		}
		if err := w.Add(ctx, image); err != nil {
			return err
		}
		done++
		phase.Progress(done, total)
	}
	for _, m := range in.plan.modules {
		o := origin
		if m.Manifest.Version != "" {
			o.Version = m.Manifest.Version
		}
		a, err := artifact.NewModule(m.Manifest.Module, o, m.Raw)
		if err != nil {
			return err
		}
		if err := w.Add(ctx, a); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return checkSeed(ctx, dir, in)
}

// checkSeed reads a seed back and makes sure that every artifact that a module names is in it for the architecture.
func checkSeed(ctx context.Context, dir string, in seedInputs) error {
	l, err := artifact.OpenLayout(os.DirFS(dir))
	if err != nil {
		return err
	}
	if err := l.Verify(ctx, nil); err != nil {
		return fmt.Errorf("the seed does not read back: %w", err)
	}
	for _, m := range in.plan.modules {
		if _, err := l.Find(mesh.Ref{Kind: mesh.ArtifactModule, Name: m.Manifest.Module}, ""); err != nil {
			return err
		}
		for _, r := range m.Manifest.Resources {
			if ref := r.Artifact(); !ref.IsZero() {
				if _, err := l.Find(ref, in.arch); err != nil {
					return fmt.Errorf("module %s, resource %s: %w", m.Manifest.Module, r.ID, err)
				}
			}
		}
	}
	return nil
}
