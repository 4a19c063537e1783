package pid1

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/mesh"
)

// dataTree makes a data partition as a node leaves it, with a mark.
func dataTree(t *testing.T) (dir, mark string, keep []string) {
	t.Helper()
	dir = t.TempDir()
	state := filepath.Join(dir, "lib/kingpost")
	mark = filepath.Join(state, "reset.json")
	for _, f := range []string{
		"lib/kingpost/node/key.pem", "lib/kingpost/node/id", "lib/kingpost/node/frozen.json", "lib/kingpost/identity/ca.pem",
		"lib/kingpost/host/declaration.json", "lib/kingpost/volumes/vault/data/x", "lib/kingpost/bundles/seed/sha256-ab/bin/x",
		"lib/kingpost/launcher/state.json", "lib/kingpost/launcher/clock", "lib/kingpost/launcher/clock-synced",
		"lost+found/#12", "lib/other/file", "stray", "lib/kingpost/.kingpost-tmp-reset.json-1",
	} {
		p := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("x"), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(state, "volumes/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, []byte(`{"node":"alpha","nodeConfig":"ab"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, mark, []string{filepath.Join(state, "launcher/clock"), filepath.Join(state, "launcher/clock-synced")}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func TestWipe(t *testing.T) {
	dir, mark, keep := dataTree(t)
	if err := wipe(dir, mark, keep); err != nil {
		t.Fatal(err)
	}
	want := []string{"lib/kingpost/launcher/clock", "lib/kingpost/launcher/clock-synced", "lib/kingpost/reset.json", "lost+found/#12"}
	if d := cmp.Diff(want, files(t, dir)); d != "" {
		t.Error(d)
	}
	r, err := readReset(mark)
	if err != nil || r.Node != "alpha" {
		t.Fatalf("the mark: %+v, %v", r, err)
	}
	node := filepath.Join(dir, "lib/kingpost/node")
	if err := finishWipe(mark, node, r); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mark); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mark is still there: %v", err)
	}
	if got, err := readReset(filepath.Join(node, mesh.FileVoid)); err != nil || got != r {
		t.Errorf("what stays: %+v, %v", got, err)
	}
}

// A wipe that was cut anywhere, with whatever of the tree gone, ends the same when it is done again.
func TestWipeCutAnywhere(t *testing.T) {
	for cut := 0; ; cut++ {
		dir, mark, keep := dataTree(t)
		all := files(t, dir)
		all = slices.DeleteFunc(all, func(f string) bool { return filepath.Join(dir, f) == mark })
		if cut > len(all) {
			return
		}
		for _, f := range all[:cut] {
			if !slices.Contains(keep, filepath.Join(dir, f)) {
				os.Remove(filepath.Join(dir, f))
			}
		}
		if err := wipe(dir, mark, keep); err != nil {
			t.Fatalf("cut after %d files: %v", cut, err)
		}
		for _, f := range files(t, dir) {
			if p := filepath.Join(dir, f); p != mark && !slices.Contains(keep, p) && f != "lost+found/#12" {
				t.Fatalf("cut after %d files: %s is left", cut, f)
			}
		}
	}
}

func TestReadReset(t *testing.T) {
	p := filepath.Join(t.TempDir(), "reset.json")
	if _, err := readReset(p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a mark: %v", err)
	}
	for _, bad := range []string{"", "{", "\x00\x00"} {
		os.WriteFile(p, []byte(bad), 0o600)
		if r, err := readReset(p); err == nil || r != (mesh.Reset{}) {
			t.Errorf("%q: %+v, %v", bad, r, err)
		}
	}
}
