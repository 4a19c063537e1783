package builder

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"

	"kingpost/internal/cpiofs"
	"kingpost/internal/kmod"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
	"kingpost/internal/uki"
)

// initrdForm changes whenever the initrd's bytes do for the same inputs.
const initrdForm = "2"

// makeInitrd packs mesh-init and the kernel modules that find a root, or takes the initrd from the cache.
func makeInitrd(ctx context.Context, cache *Cache, info mesh.ReleaseInfo, init binary, k *kernel) ([]byte, error) {
	rel, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	key := hashStrings(initrdForm, string(rel), init.SHA256, filepath.Base(k.dir))
	dir, err := cache.item(ctx, "initrd", key, func(dir string) error {
		program, err := os.ReadFile(init.File)
		if err != nil {
			return err
		}
		entries := []cpiofs.Entry{
			{Path: "init", Mode: 0o755, Data: program},
			{Path: "release.json", Mode: 0o644, Data: append(rel, '\n')},
		}
		var load []string
		for _, m := range k.Initrd {
			data, err := os.ReadFile(filepath.Join(k.modules(), filepath.FromSlash(m)))
			if err != nil {
				return err
			}
			name := filepath.Base(m)
			load = append(load, name)
			entries = append(entries, cpiofs.Entry{Path: "modules/" + name, Mode: 0o644, Data: data})
		}
		entries = append(entries, cpiofs.Entry{Path: "modules/load", Mode: 0o644, Data: []byte(lines(load))})
		lists, err := initrdLists(ctx, k)
		if err != nil {
			return err
		}
		entries = append(entries, lists...)
		var b bytes.Buffer
		if err := cpiofs.WriteInitrd(&b, entries); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "initrd"), b.Bytes(), 0o644)
	})
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, "initrd"))
}

// initrdLists are the lists of the initrd's modules: with them a node knows which of them its hardware needs without
// looking into each, which would cost an emulated machine a fifth of a second.
func initrdLists(ctx context.Context, k *kernel) ([]cpiofs.Entry, error) {
	index, err := kmod.ReadIndex(ctx, os.DirFS(k.modules()))
	if err != nil {
		return nil, err
	}
	var mods []*kmod.Module
	for _, m := range index.Modules {
		if slices.Contains(k.Initrd, m.File) {
			mods = append(mods, m)
		}
	}
	subset, err := index.Subset(ctx, mods, path.Base)
	if err != nil {
		return nil, err
	}
	lists, err := subset.Lists(ctx)
	if err != nil {
		return nil, err
	}
	var out []cpiofs.Entry
	for _, name := range []string{"modules.alias", "modules.dep", "modules.softdep"} {
		out = append(out, cpiofs.Entry{Path: "modules/" + name, Mode: 0o644, Data: lists[name]})
	}
	return out, nil
}

// bootFiles is everything that starts a release.
type bootFiles struct {
	kernel, initrd []byte
	cmdline        release.Cmdline
	uki, rescue    []byte
	loader         []byte // systemd-boot
}

// makeBoot makes the release's UKI, whose command line pins the root, and the rescue entry's, which has no root.
func makeBoot(ctx context.Context, r *Recipe, info mesh.ReleaseInfo, k *kernel, initrd []byte, efi string, root *rootImage) (*bootFiles, error) {
	a := archs[info.Architecture]
	var err error
	read := func(file string, e error) []byte {
		if err == nil && e != nil {
			err = e
		}
		if err != nil {
			return nil
		}
		var b []byte
		b, err = os.ReadFile(file)
		return b
	}
	b := &bootFiles{initrd: initrd}
	b.kernel = read(k.vmlinuz(), nil)
	b.loader = read(inTree(efi, "usr/lib/systemd/boot/efi/"+a.boot))
	stub := read(inTree(efi, "usr/lib/systemd/boot/efi/"+a.stub))
	if err != nil {
		return nil, err
	}
	if b.cmdline, err = release.NewCmdline(info.Architecture, hex.EncodeToString(root.RootHash[:]), root.HashOffset, r.Cmdline...); err != nil {
		return nil, err
	}
	rescue, err := release.RescueCmdline(info.Architecture, r.Cmdline...)
	if err != nil {
		return nil, err
	}
	build := func(cmdline release.Cmdline) ([]byte, error) {
		return uki.Build(stub, []uki.Section{
			{Name: uki.OSRel, Data: []byte(osRelease(info))},
			{Name: uki.Cmdline, Data: []byte(cmdline.String())},
			{Name: uki.Uname, Data: []byte(k.Version)},
			{Name: uki.Initrd, Data: initrd},
			{Name: uki.Linux, Data: b.kernel},
		})
	}
	if b.uki, err = build(b.cmdline); err != nil {
		return nil, err
	}
	if b.rescue, err = build(rescue); err != nil {
		return nil, err
	}
	return b, ctx.Err()
}
