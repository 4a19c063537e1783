package projquota

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// The sizes that the kernel knows these by are part of the request numbers.
func TestSizes(t *testing.T) {
	if s := unsafe.Sizeof(fsxattr{}); s != ioctlGetAttr>>16&0x3fff {
		t.Errorf("struct fsxattr has %d bytes", s)
	}
	if s := unsafe.Sizeof(dqblk{}); s != 72 {
		t.Errorf("struct if_dqblk has %d bytes", s)
	}
	if cmdTurnOn != 0x580102 || cmdSetQuota != 0x80000802 {
		t.Errorf("commands: %#x %#x", cmdTurnOn, cmdSetQuota)
	}
}

// TestNone: where there are no quotas that is said, and nothing else.
func TestNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := Assign(dir, 4711)
	if err == nil {
		err = Limit(dir, 4711, 1<<20)
	}
	if err == nil {
		t.Skip("quotas are kept here; the end-to-end tests look at what they do")
	}
	if !errors.Is(err, ErrNone) && !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
}
