package builder

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
)

func TestHashFile(t *testing.T) {
	for _, c := range []struct {
		name string
		size int64
		data map[int64]string
	}{
		{"empty", 0, nil},
		{"small", 5, map[int64]string{0: "hello"}},
		{"hole only", 3 << 20, nil},
		{"hole first and last", 5<<20 + 7, map[int64]string{2 << 20: "x", 3<<20 + 5: "y"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "f")
			f, err := os.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(c.size); err != nil {
				t.Fatal(err)
			}
			for off, s := range c.data {
				if _, err := f.WriteAt([]byte(s), off); err != nil {
					t.Fatal(err)
				}
			}
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			want := sha256.Sum256(raw)
			got, size, err := hashFile(t.Context(), name)
			if err != nil || got != hex.EncodeToString(want[:]) || size != c.size {
				t.Errorf("got %s, %d bytes, %v", got, size, err)
			}
		})
	}
}
