package loopdev

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAttach(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	want := bytes.Repeat([]byte("0123456789abcdef"), 512) // 8 KiB
	if err := os.WriteFile(file, append(make([]byte, 1024), append(want, make([]byte, 4096)...)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int64{{1, 512}, {512, 0}, {512, 513}, {-512, 512}} {
		if node, err := Attach(file, c[0], c[1]); err == nil {
			t.Errorf("%d bytes at %d became %s", c[1], c[0], node)
		}
	}
	node, err := Attach(file, 1024, int64(len(want)))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skipf("this machine lets nobody make loop devices, the end-to-end tests do: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(node, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func() {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want)+1)
	n, err := f.ReadAt(got, 0)
	if !bytes.Equal(got[:n], want) {
		t.Errorf("it has %d bytes (%v), or others", n, err)
	}
	if w, err := os.OpenFile(node, os.O_WRONLY, 0); err == nil {
		if _, err = w.WriteAt(want[:512], 0); err == nil {
			err = w.Sync()
		}
		w.Close()
		if err == nil {
			t.Error("it can be written to")
		}
	}
}
