package fat32

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestRoom compares what is worked out with what a file system then has, to the cluster.
func TestRoom(t *testing.T) {
	many := []File{}
	for i := range 300 {
		many = append(many, File{fmt.Sprintf("a folder/file with a long name %d.text", i), []byte{1}})
	}
	for name, files := range map[string][]File{
		"nothing": nil, "sample": sample(), "many": many,
		"empty file":     {{"EMPTY", nil}},
		"deep":           {{"a/b/c/d/e/F.TXT", []byte{1}}, {"a/b/c/G", nil}, {"a/x", nil}},
		"a cluster":      {{"A", make([]byte, 4096)}, {"B", make([]byte, 4097)}},
		"exact names":    {{"EFI/BOOT/BOOTX64.EFI", make([]byte, 10)}},
		"characters":     {{"größe/日本語.txt", make([]byte, 10)}},
		"255 characters": {{strings.Repeat("n", 255), nil}},
	} {
		for _, s := range []struct {
			size   int64
			sector int
		}{{MinSize(512), 512}, {300 << 20, 512}, {MinSize(4096), 4096}} {
			t.Run(fmt.Sprintf("%s/%d/%d", name, s.size>>20, s.sector), func(t *testing.T) {
				u, err := Room(s.size, s.sector, files)
				if err != nil {
					t.Fatal(err)
				}
				f := open(t, image(t, options(s.size, s.sector), files))
				if u.Cluster != f.clusterSize || u.Size != int64(f.clusters)*f.clusterSize {
					t.Errorf("%+v, but it has %d clusters of %d", u, f.clusters, f.clusterSize)
				}
				if got := u.Size - int64(f.free())*f.clusterSize; got != u.Used {
					t.Errorf("it uses %d bytes, %d were worked out", got, u.Used)
				}
			})
		}
	}
}

// untouched is a device that must not be written to.
type untouched struct{ t *testing.T }

func (untouched) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (u untouched) WriteAt(p []byte, off int64) (int, error) {
	u.t.Errorf("%d bytes were written at %d", len(p), off)
	return len(p), nil
}

func TestFormatTooMuch(t *testing.T) {
	o := options(MinSize(512), 512)
	err := Format(untouched{t}, o, []File{{"A", make([]byte, o.Size)}})
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "need") {
		t.Errorf("got %v", err)
	}
}
