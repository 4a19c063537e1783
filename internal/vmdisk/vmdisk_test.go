package vmdisk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/internal/blockmap"
	"kingpost/internal/testtool"
)

// writers are the formats by their names for qemu-img.
var writers = map[string]func(context.Context, io.Writer, Image) error{
	"qcow2": WriteQCOW2,
	"vmdk":  func(ctx context.Context, w io.Writer, im Image) error { return WriteVMDK(ctx, w, im, "disk.vmdk") },
	"vhdx":  WriteVHDX,
}

// sparse is an image that is zero but for some pieces.
type sparse struct {
	size   int64
	pieces map[int64][]byte
}

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	n := int(min(int64(len(p)), s.size-off))
	for at, b := range s.pieces {
		if at < off+int64(n) && off < at+int64(len(b)) {
			copy(p[max(at-off, 0):n], b[max(off-at, 0):])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (s sparse) image(t *testing.T, size int64) Image {
	t.Helper()
	m, err := blockmap.Make(t.Context(), s, s.size)
	if err != nil {
		t.Fatal(err)
	}
	return Image{ReaderAt: s, Map: m, Size: size, ID: [16]byte{0xab, 1, 2, 3, 4, 5, 6, 0x87, 0x88, 9}}
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(uint64(n), 7))
	for i := range b {
		b[i] = byte(r.Uint32()) | 1
	}
	return b
}

// TestByQEMU has qemu-img check each file and turn it back into the image.
func TestByQEMU(t *testing.T) {
	testtool.Find(t, "qemu-utils", "qemu-img")
	images := map[string]struct {
		s    sparse
		size int64
	}{
		"empty":           {sparse{1 << 20, nil}, 1 << 20},
		"one byte":        {sparse{1 << 20, map[int64][]byte{777: {1}}}, 1 << 20},
		"last byte":       {sparse{3<<20 + 4096, map[int64][]byte{3<<20 + 4095: {1}}}, 4 << 20},
		"full":            {sparse{2 << 20, map[int64][]byte{0: noise(2 << 20)}}, 2 << 20},
		"larger disk":     {sparse{5 << 20, map[int64][]byte{0: noise(70000), 4 << 20: noise(99)}}, 8 << 30},
		"many tables":     {sparse{9 << 30, map[int64][]byte{1 << 20: noise(5000), 513<<20 - 9: noise(20), 4<<30 - 1: noise(2), 9<<30 - 512: noise(512)}}, 9 << 30},
		"across a chunk":  {sparse{4098 << 20, map[int64][]byte{4095 << 20: noise(3 << 20)}}, 4098 << 20},
		"more than 2 GiB": {sparse{3 << 30, map[int64][]byte{0: noise(40 << 20)}}, 3 << 30},
	}
	for name, im := range images {
		for format, write := range writers {
			t.Run(name+"/"+format, func(t *testing.T) {
				var first, second bytes.Buffer
				if err := errors.Join(write(t.Context(), &first, im.s.image(t, im.size)), write(t.Context(), &second, im.s.image(t, im.size))); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(first.Bytes(), second.Bytes()) {
					t.Error("twice the same image gives different files")
				}
				dir := t.TempDir()
				file, raw := filepath.Join(dir, "disk."+format), filepath.Join(dir, "raw")
				if err := os.WriteFile(file, first.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				img(t, "check", "-f", format, file)
				img(t, "convert", "-f", format, "-O", "raw", file, raw)
				sameAs(t, raw, im.s, im.size)
			})
		}
	}
}

func img(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("qemu-img", args...).CombinedOutput()
	if err != nil || strings.Contains(string(out), "ERROR") || strings.Contains(string(out), "eaked") {
		t.Fatalf("qemu-img %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// sameAs compares a raw file with an image on a disk of that size.
func sameAs(t *testing.T, file string, s sparse, size int64) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := blockmap.MakeFile(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := blockmap.Make(t.Context(), s, s.size)
	if err != nil {
		t.Fatal(err)
	}
	if got.Size != size {
		t.Errorf("it is a disk of %d bytes, not %d", got.Size, size)
	}
	got.Size = want.Size
	if err := got.Differs(want); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	small := sparse{2 << 20, map[int64][]byte{5: {1}}}
	for format, write := range writers {
		for name, size := range map[string]int64{"smaller than the image": 1 << 20, "no whole MiB": 2<<20 + 512, "none": 0, "negative": -1 << 20, "too large": 1 << 60} {
			if err := write(t.Context(), io.Discard, small.image(t, size)); err == nil {
				t.Errorf("%s: a disk that is %s was written", format, name)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := write(ctx, io.Discard, small.image(t, 2<<20)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: stopped, it says %v", format, err)
		}
		im := small.image(t, 2<<20)
		im.ReaderAt = bytes.NewReader(make([]byte, 100))
		if err := write(t.Context(), io.Discard, im); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: of an image that was cut short it says %v", format, err)
		}
	}
	if err := WriteVMDK(t.Context(), io.Discard, small.image(t, 2<<20), "a\"b"); err == nil {
		t.Error("a name with a quote was written")
	}
}
