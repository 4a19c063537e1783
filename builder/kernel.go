package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"kingpost/internal/kmod"
)

// kernel is what was taken out of a kernel package.
type kernel struct {
	Version string   // "6.12.118+deb13-cloud-amd64"
	Initrd  []string // module files for the initrd, in load order, below modules/
	dir     string   // holds vmlinuz and modules/
}

func (k *kernel) vmlinuz() string { return filepath.Join(k.dir, "vmlinuz") }
func (k *kernel) modules() string { return filepath.Join(k.dir, "modules") }

// kernelForm changes whenever what takeKernel writes does.
const kernelForm = "1"

// takeKernel picks a kernel and the modules that the recipe names, with all that these need, decompressed.
func takeKernel(ctx context.Context, cache *Cache, tree string, d LockedDeb, deb Debian) (*kernel, error) {
	key := hashStrings(kernelForm, d.SHA256, strings.Join(deb.Initrd, " "), strings.Join(deb.Modules, " "), strings.Join(deb.Load, " "))
	dir, err := cache.item(ctx, "kernel", key, func(dir string) error { return pickKernel(ctx, dir, tree, deb) })
	if err != nil {
		return nil, fmt.Errorf("kernel of %s: %w", d, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "kernel.json"))
	if err != nil {
		return nil, err
	}
	k := &kernel{dir: dir}
	return k, json.Unmarshal(raw, k)
}

func pickKernel(ctx context.Context, dir, tree string, deb Debian) error {
	vmlinuz, err := inTree(tree, "boot/vmlinuz-*")
	if err != nil {
		return err
	}
	k := kernel{Version: strings.TrimPrefix(filepath.Base(vmlinuz), "vmlinuz-"), dir: dir}
	if err := copyFile(ctx, k.vmlinuz(), vmlinuz); err != nil {
		return err
	}
	mods, err := inTree(tree, "usr/lib/modules/"+k.Version)
	if err != nil {
		return err
	}
	fsys := os.DirFS(mods)
	index, err := kmod.ReadIndex(ctx, fsys)
	if err != nil {
		return err
	}
	initrd, err := index.Closure(ctx, deb.Initrd...)
	if err != nil {
		return fmt.Errorf("debian.initrd: %w", err)
	}
	all, err := index.Closure(ctx, append(append([]string{}, deb.Initrd...), deb.Modules...)...)
	if err != nil {
		return fmt.Errorf("debian.modules: %w", err)
	}
	if err := loadable(ctx, index, all, deb.Load); err != nil {
		return err
	}
	for _, m := range all {
		if err := decompressModule(k.modules(), fsys, m.File); err != nil {
			return fmt.Errorf("module %s: %w", m.File, err)
		}
	}
	for _, m := range initrd {
		k.Initrd = append(k.Initrd, kmod.Decompressed(m.File))
	}
	subset, err := index.Subset(ctx, all, kmod.Decompressed)
	if err != nil {
		return err
	}
	if err := writeModuleLists(ctx, k.modules(), subset); err != nil {
		return err
	}
	raw, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kernel.json"), raw, 0o644)
}

// loadable checks that what is to be loaded at every start is among the modules.
func loadable(ctx context.Context, index *kmod.Index, all []*kmod.Module, names []string) error {
	in := map[string]bool{}
	for _, m := range all {
		in[m.Name] = true
	}
	for _, n := range names {
		mods, err := index.Closure(ctx, n)
		if err != nil {
			return fmt.Errorf("debian.load: %w", err)
		}
		for _, m := range mods {
			if !in[m.Name] {
				return fmt.Errorf("debian.load: %s is not in debian.modules", n)
			}
		}
	}
	return nil
}

func writeModuleLists(ctx context.Context, dir string, x *kmod.Index) error {
	lists, err := x.Lists(ctx)
	if err != nil {
		return err
	}
	for name, data := range lists {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func decompressModule(dir string, fsys fs.FS, file string) error {
	in, err := kmod.Open(fsys, file)
	if err != nil {
		return err
	}
	defer in.Close()
	name := filepath.Join(dir, filepath.FromSlash(kmod.Decompressed(file)))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
