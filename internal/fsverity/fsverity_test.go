package fsverity

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sizes sit on both sides of every boundary: empty, one block, one hash block (128 blocks), two levels.
var sizes = []int{0, 1, 4095, 4096, 4097, 8192, 128 * 4096, 128*4096 + 1, 129 * 4096, 128*128*4096 - 1,
	128 * 128 * 4096, 128*128*4096 + 1, 128*128*4096 + 4096*128, 128*128*4096 + 4096*128 + 5}

func content(n int) []byte {
	b := make([]byte, n)
	x := uint32(n) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// plain is the definition, written down level by level.
func plain(data []byte) string {
	var desc [256]byte
	desc[0], desc[1], desc[2] = 1, 1, 12
	for i := range 8 {
		desc[8+i] = byte(len(data) >> (8 * i))
	}
	for level := data; len(data) > 0; {
		var next []byte
		for i := 0; i < len(level); i += BlockSize {
			sum := sha256.Sum256(padded(level[i:min(i+BlockSize, len(level))]))
			next = append(next, sum[:]...)
		}
		level = next
		if len(level) == sha256.Size {
			copy(desc[16:], level)
			break
		}
	}
	sum := sha256.Sum256(desc[:])
	return hex.EncodeToString(sum[:])
}

func TestDigest(t *testing.T) {
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			data := content(n)
			got, size, err := Digest(bytes.NewReader(data))
			if err != nil || size != int64(n) {
				t.Fatalf("Digest: %d bytes, %v", size, err)
			}
			if want := plain(data); hex.EncodeToString(got) != want {
				t.Errorf("got %x, want %s", got, want)
			}
		})
	}
}

func TestWriteInPieces(t *testing.T) {
	data := content(600*4096 + 77)
	want := plain(data)
	for _, piece := range []int{1000, 4096, 5000, 70000} {
		h := New()
		for rest := data; len(rest) > 0; {
			k := min(piece, len(rest))
			h.Write(rest[:k])
			rest = rest[k:]
			h.Sum(nil) // must not disturb
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != want {
			t.Errorf("in pieces of %d: got %s, want %s", piece, got, want)
		}
	}
}

// TestAgainstTool compares with fsverity-utils' own program.
func TestAgainstTool(t *testing.T) {
	tool, err := exec.LookPath("fsverity")
	if err != nil {
		t.Fatal("fsverity is not installed; make test installs its package, fsverity")
	}
	for _, n := range sizes {
		data := content(n)
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "digest", "--compact", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		got, _, _ := Digest(bytes.NewReader(data))
		if want := strings.TrimSpace(string(out)); hex.EncodeToString(got) != want {
			t.Errorf("%d bytes: got %x, fsverity says %s", n, got, want)
		}
	}
}
