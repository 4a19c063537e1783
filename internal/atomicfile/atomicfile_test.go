package atomicfile

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for _, tc := range []struct {
		name string
		data []byte
		perm os.FileMode
	}{
		{"new", []byte("one"), 0o600},
		{"replaced, other mode", []byte("two"), 0o644},
		{"empty", nil, 0o666},
		{"large", bytes.Repeat([]byte("x"), 1<<20), 0o400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := Write(path, tc.data, tc.perm); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, tc.data) {
				t.Fatalf("read back %d bytes, %v; want %d", len(got), err, len(tc.data))
			}
			fi, _ := os.Stat(path)
			if fi.Mode().Perm() != tc.perm {
				t.Errorf("mode %v, want %v", fi.Mode().Perm(), tc.perm)
			}
			if n := entries(t, dir); n != 1 {
				t.Errorf("%d files in the folder, want 1", n)
			}
		})
	}
}

func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	if err := Write(filepath.Join(dir, "absent", "f"), nil, 0o600); err == nil {
		t.Error("a missing folder is no error")
	}
	// A folder in the way: the rename fails, and nothing may be left.
	target := filepath.Join(dir, "folder")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(target, []byte("x"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if n := entries(t, dir); n != 1 {
		t.Errorf("%d entries left, want 1", n)
	}
}

func TestWriteAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := Write(path, bytes.Repeat([]byte{byte('a' + i)}, 4096), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 4096 || !bytes.Equal(b, bytes.Repeat(b[:1], 4096)) {
		t.Fatalf("a mixture of writers: %d bytes, %v", len(b), err)
	}
}

func TestRemoveAndClean(t *testing.T) {
	dir := t.TempDir()
	if err := Remove(filepath.Join(dir, "absent")); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, prefix+"f-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(dir, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Clean(dir); err != nil {
		t.Fatal(err)
	}
	if n := entries(t, dir); n != 1 {
		t.Errorf("%d entries after Clean, want 1", n)
	}
	if err := Remove(filepath.Join(dir, "keep")); err != nil {
		t.Error(err)
	}
	if err := Clean(filepath.Join(dir, "absent")); err != nil {
		t.Error(err)
	}
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}
