package inspect

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kingpost/builder"
	"kingpost/internal/testtool"
)

// flipped is a file with one bit turned.
type flipped struct {
	io.ReaderAt
	at int64
}

func (f flipped) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(p, off)
	if i := f.at - off; i >= 0 && i < int64(n) {
		p[i] ^= 1
	}
	return n, err
}

func TestBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image")
	}
	testtool.Find(t, "apt", "apt-get") // packages come through it
	cache, err := builder.DefaultCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	res, dir, err := builder.Build(t.Context(), builder.Options{Recipe: "../../images/vm.yaml", Out: t.TempDir(), Cache: cache})
	if err != nil {
		t.Fatal(err)
	}

	t.Run("folder", func(t *testing.T) {
		r, err := Path(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Problems(); len(p) > 0 {
			t.Errorf("problems: %s", strings.Join(p, "\n"))
		}
		d := r.Disk
		if len(d.Partitions) != 4 || len(d.Entries) != 2 || len(d.Roots) != 1 {
			t.Fatalf("%d partitions, %d entries, %d roots", len(d.Partitions), len(d.Entries), len(d.Roots))
		}
		root := d.Roots[0]
		if !root.Verified || !root.Pinned || root.RootHash != res.RootHash || root.Release != res.ReleaseInfo || root.Kernel != res.Kernel {
			t.Errorf("root %+v, built %+v", root, res)
		}
		var names []string
		for _, s := range root.Seed {
			names = append(names, s.Name)
		}
		for _, want := range []string{"bundle/mesh-controller:", "image/mesh-controller:", "image/registry:", "image/broker:", "module/vault:"} {
			if !strings.Contains(strings.Join(names, " "), want) {
				t.Errorf("the seed has no %s: %v", want, names)
			}
		}
	})
	t.Run("root alone", func(t *testing.T) {
		raw, err := os.Open(filepath.Join(dir, builder.FileRoot))
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		r, err := Root(t.Context(), raw, "", -1)
		if err != nil || !r.Verified || r.Pinned || r.RootHash != res.RootHash {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("flipped", func(t *testing.T) {
		f, err := os.Open(filepath.Join(dir, builder.FileDisk))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		whole, err := Disk(t.Context(), f, st.Size())
		if err != nil {
			t.Fatal(err)
		}
		at := whole.Partitions[1].Start + 12_345_678
		d, err := Disk(t.Context(), flipped{f, at}, st.Size())
		if err != nil || len(d.Roots) != 1 {
			t.Fatalf("%d roots, %v", len(d.Roots), err)
		}
		if r := d.Roots[0]; r.Verified || !strings.Contains(r.Problem, "block 3014") || r.Seed != nil {
			t.Errorf("%+v", r)
		}
	})
}

func TestPathRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "text": "hello", "mz": "MZ" + strings.Repeat("\x00", 100), "zeros": strings.Repeat("\x00", 1<<20)} {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if r, err := Path(t.Context(), p); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	pipe := filepath.Join(dir, "pipe") // that nobody writes to: it must not be waited for
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, filepath.Join(dir, "absent"), pipe, "/dev/zero"} {
		if r, err := Path(t.Context(), p); err == nil {
			t.Errorf("%s: %+v", p, r)
		}
	}
}
