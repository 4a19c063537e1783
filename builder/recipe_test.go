package builder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const goodRecipe = `kind: node-image
name: node
version: 0.1.0
date: 2026-12-01
arch: [amd64, arm64]
debian: { suite: trixie, kernel: linux-image, initrd: [erofs], modules: [vfat], firmware: [] }
programs:
  - deb: runc
seed: [registry]
slots: { root: 1GiB, esp: 512MiB }
`

func files(m map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for k, v := range m {
		fsys[k] = &fstest.MapFile{Data: []byte(v)}
	}
	return fsys
}

func TestReadRecipeRefuses(t *testing.T) {
	change := func(old, new string) map[string]string {
		s := strings.Replace(goodRecipe, old, new, 1)
		if s == goodRecipe {
			t.Fatalf("%q is not in the recipe", old)
		}
		return map[string]string{"images/node.yaml": s}
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string // all of them are in the error
	}{
		{"unknown key", change("seed:", "seeds:"), []string{"images/node.yaml:9:1", `unknown field "seeds"`, ">  9 | seeds:"}},
		{"unknown nested key", change("kernel: linux-image", "kernal: linux-image"), []string{"images/node.yaml:6:26", `unknown field "kernal"`}},
		{"duplicate key", change("version: 0.1.0", "name: other"), []string{"images/node.yaml:3:1", "already defined"}},
		{"wrong type", change("seed: [registry]", "seed: registry"), []string{"images/node.yaml:9:7: a list is wanted here, found text", ">  9 | seed: registry"}},
		{"number for a list", change("seed: [registry]", "seed: 5"), []string{"a list is wanted here, found a number"}},
		{"wrong nested type", change("modules: [vfat]", "modules: {a: b}"), []string{"images/node.yaml:6:", "a list is wanted here, found a mapping"}},
		{"list for text", change("name: node", "name: [a]"), []string{"images/node.yaml:2:7: text is wanted here, found a list"}},
		{"text for a mapping", change("- deb: runc", "- runc"), []string{"a mapping (key: value) is wanted here, found text"}},
		{"number for text", change("version: 0.1.0", "version: 1.0"), []string{"images/node.yaml:3:10: text is wanted here, found a number", `"1.0"`}},
		{"truth for text", change("name: node", "name: true"), []string{"images/node.yaml:2:7: text is wanted here"}},
		{"nothing for text", change("name: node", "name:"), []string{"images/node.yaml:2:", "found nothing"}},
		{"nothing for a list", change("seed: [registry]", "seed: ~"), []string{"a list is wanted here, found nothing"}},
		{"nothing in a list", change("seed: [registry]", "seed: [~]"), []string{"images/node.yaml:9:8: text is wanted here, found nothing"}},
		{"number in a list", change("seed: [registry]", "seed: [5]"), []string{"images/node.yaml:9:8: text is wanted here"}},
		{"second document", change("seed:", "---\nseed:"), []string{"images/node.yaml:10:", "second document"}},
		{"alias", change("seed: [registry]", "seed: [&a registry, *a]"), []string{"images/node.yaml:9:8", "anchors"}},
		{"deep", change("seed: [registry]", "seed: "+strings.Repeat("[", 1<<19)), []string{"images/node.yaml:9:", "deeper"}},
		{"no size", change("root: 1GiB", "root: 1GB"), []string{"images/node.yaml:10:", "is no size"}},
		{"too small", change("root: 1GiB", "root: 1MiB"), []string{"slots.root", "too small"}},
		{"no YAML", map[string]string{"images/node.yaml": "kind: [\n"}, []string{"images/node.yaml:"}},
		{"other kind", change("kind: node-image", "kind: pod"), []string{"kind", "node-image"}},
		{"bad name", change("name: node", "name: Node"), []string{"name"}},
		{"bad version", change("version: 0.1.0", "version: latest"), []string{"version", "latest"}},
		{"bad date", change("2026-12-01", "2026-13-01"), []string{"date"}},
		{"bad arch", change("[amd64, arm64]", "[amd64, sparc]"), []string{"arch", "sparc"}},
		{"modules of another arch", change("firmware: []", "only: { riscv64: { modules: [x] } }"), []string{"debian.only", "riscv64"}},
		{"seed twice", change("[registry]", "[registry, registry]"), []string{"seed", "twice"}},
		{"arch twice", change("[amd64, arm64]", "[amd64, amd64]"), []string{"arch: amd64 is there twice"}},
		{"program twice", change("- deb: runc", "- deb: runc\n  - deb: runc"), []string{"programs.deb: runc is there twice"}},
		{"option for a program", change("- deb: runc", "- deb: -oDebug=1"), []string{"programs.deb", "no name of a package"}},
		{"path for firmware", change("firmware: []", "firmware: [../x]"), []string{"debian.firmware", "no name of a package"}},
		{"option for a kernel", change("kernel: linux-image", "kernel: --x"), []string{"debian.kernel", "no name of a package"}},
		{"suite with a way out", change("suite: trixie", "suite: '..'"), []string{"debian.suite"}},
		{"module twice", change("modules: [vfat]", "modules: [vfat, vfat]"), []string{"debian.modules: vfat is there twice"}},
		{"path for a module", change("initrd: [erofs]", "initrd: [../erofs]"), []string{"debian.initrd", "no name of a kernel module"}},
		{"no module of an arch", change("firmware: []", "only: { amd64: { load: [''] } }"), []string{"debian.only.amd64.load", "no name of a kernel module"}},
		{"two words", change("seed:", "cmdline: [a b]\nseed:"), []string{"cmdline:", "not one word"}},
		{"word of ours", change("seed:", "cmdline: [kingpost.root=0]\nseed:"), []string{"cmdline:", "kingpost.root"}},
		{"ESP too small", change("esp: 512MiB", "esp: 32MiB"), []string{"slots.esp", "at least 33MiB"}},
		{"no whole MiB", change("root: 1GiB", "root: 40961KiB"), []string{"slots.root", "whole number of MiB"}},
		{"too large a slot", change("root: 1GiB", "root: 100TiB"), []string{"slots.root", "up to 8TiB"}},
		{"data too small", change("esp: 512MiB", "esp: 512MiB, data: 1KiB"), []string{"slots.data"}},
		{"wrong in what it extends", map[string]string{"images/node.yaml": "extends: b.yaml\nversion: x\n", "images/b.yaml": goodRecipe},
			[]string{"images/node.yaml, extending images/b.yaml: version"}},
		{"missing", nil, []string{"images/node.yaml"}},
		{"extends itself", change("kind:", "extends: node.yaml\nkind:"), []string{"extends itself", "node.yaml -> "}},
		{"extends in a circle", map[string]string{
			"images/node.yaml": "extends: b.yaml\n", "images/b.yaml": "extends: node.yaml\n",
		}, []string{"images/node.yaml -> images/b.yaml -> images/node.yaml"}},
		{"extends out of the folder", change("kind:", "extends: ../x.yaml\nkind:"), []string{"same folder"}},
		{"extends its folder", change("kind:", "extends: .\nkind:"), []string{"same folder"}},
		{"extends nothing", change("kind:", "extends: x.yaml\nkind:"), []string{"images/node.yaml extends it", "images/x.yaml"}},
		{"too large", map[string]string{"images/node.yaml": strings.Repeat("#", maxRecipe+1)}, []string{"bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadRecipe(files(c.files), "images/node.yaml")
			if err == nil {
				t.Fatal("accepted")
			}
			t.Log(err)
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("want %q in it", w)
				}
			}
		})
	}
}

// TestReadRecipeSpecial has recipes that are no files: opening a FIFO would wait for ever.
func TestReadRecipeSpecial(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(syscall.Mkfifo(filepath.Join(dir, "fifo.yaml"), 0o600), os.Symlink("/dev/zero", filepath.Join(dir, "zero.yaml")), os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"fifo.yaml", "zero.yaml", "dir.yaml"} {
		if _, err := ReadRecipe(os.DirFS(dir), n); err == nil || !strings.Contains(err.Error(), n+" is no regular file") {
			t.Errorf("%s: got %v", n, err)
		}
		if _, err := ReadLock(os.DirFS(dir), n); err == nil || !strings.Contains(err.Error(), n+" is no regular file") {
			t.Errorf("%s as a lock: got %v", n, err)
		}
	}
}

func TestReadRecipeExtends(t *testing.T) {
	r, err := ReadRecipe(files(map[string]string{
		"images/node.yaml": goodRecipe,
		"images/vm.yaml":   "kind: node-image\nextends: node.yaml\nname: vm\ndebian: { kernel: linux-image-cloud, modules: [] }\nslots: { root: 256MiB }\n",
	}), "images/vm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &Recipe{
		Kind: "node-image", Name: "vm", Version: "0.1.0", Date: "2026-12-01", Arch: []string{"amd64", "arm64"},
		Debian:   Debian{Suite: "trixie", Kernel: "linux-image-cloud", Initrd: []string{"erofs"}, Modules: []string{}, Firmware: []string{}},
		Programs: []Program{{Deb: "runc"}}, Seed: []string{"registry"}, Slots: Slots{Root: 256 << 20, ESP: 512 << 20},
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
}

// TestOwnRecipes reads what ships.
func TestOwnRecipes(t *testing.T) {
	repo := os.DirFS("..")
	for _, n := range []string{"images/node.yaml", "images/vm.yaml"} {
		r, err := ReadRecipe(repo, n)
		if err != nil {
			t.Error(err)
			continue
		}
		plan, err := planSeed(repo, r.Seed)
		if err != nil {
			t.Error(err)
			continue
		}
		if want := []string{"mesh-builder", "mesh-catalogue", "mesh-controller", "mesh-vault"}; !cmp.Equal(want, plan.components) {
			t.Errorf("%s: components %v", n, plan.components)
		}
		l, err := ReadLock(repo, LockName(n))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, arch := range r.Arch {
			if err := l.matches(r, arch); err != nil {
				t.Errorf("%s, %s: %v", n, arch, err)
			}
		}
		raw, err := l.Render()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseLock("again", raw); err != nil || !cmp.Equal(l, again) {
			t.Errorf("%s: the lock does not read back: %v\n%s", n, err, cmp.Diff(l, again))
		}
	}
}

func TestArchitecture(t *testing.T) {
	r := &Recipe{Name: "x", Arch: []string{"arm64", "amd64"}}
	for _, c := range []struct{ arch, machine, want string }{
		{"", "amd64", "amd64"}, {"", "riscv64", "arm64"}, {"arm64", "amd64", "arm64"}, {"riscv64", "amd64", ""},
	} {
		got, err := r.Architecture(c.arch, c.machine)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Architecture(%q, %q) = %q, %v", c.arch, c.machine, got, err)
		}
	}
}

func TestSize(t *testing.T) {
	for s, want := range map[string]Size{"1KiB": 1 << 10, "512MiB": 512 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40} {
		got, err := ParseSize(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%s: %d %s, %v", s, got, got, err)
		}
	}
	for _, s := range []string{"", "1", "1GB", "-1MiB", "0MiB", "1.5GiB", "9999999999TiB", "MiB"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}

func FuzzRecipe(f *testing.F) {
	f.Add([]byte(goodRecipe))
	f.Add([]byte("extends: node.yaml\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadRecipe(fstest.MapFS{"node.yaml": {Data: b}}, "node.yaml")
		if err != nil {
			return
		}
		if r.Time().IsZero() || len(r.Arch) == 0 || r.Slots.Root <= 0 {
			t.Errorf("accepted %+v", r)
		}
	})
}
