package blockmap

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"kingpost/internal/testtool"
)

// image is an image with bytes at the given places.
func image(size int, at ...int) []byte {
	b := make([]byte, size)
	for _, i := range at {
		b[i] = byte(i%255) + 1
	}
	return b
}

func TestMapFollowsFromTheBytes(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want [][2]int64 // offset and length of the runs
	}{
		"nothing":         {nil, nil},
		"zeros":           {image(3 * Piece), nil},
		"first byte":      {image(Piece, 0), [][2]int64{{0, Unit}}},
		"last byte":       {image(Piece+5, Piece+4), [][2]int64{{Piece, 5}}},
		"two neighbours":  {image(Piece, Unit, 3*Unit-1), [][2]int64{{Unit, 2 * Unit}}},
		"a gap":           {image(Piece, 0, 2*Unit), [][2]int64{{0, Unit}, {2 * Unit, Unit}}},
		"cut at each MiB": {image(2*Piece, Piece-1, Piece), [][2]int64{{Piece - Unit, Unit}, {Piece, Unit}}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Make(t.Context(), bytes.NewReader(c.b), int64(len(c.b)))
			if err != nil {
				t.Fatal(err)
			}
			var got [][2]int64
			for _, r := range m.Runs {
				got = append(got, [2]int64{r.Off, r.Len})
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("runs %v, want %v", got, c.want)
			}
			again, err := Parse(m.Encode())
			if err != nil || again.Differs(m) != nil || again.Digest() != m.Digest() {
				t.Errorf("read back: %+v, %v", again, err)
			}
		})
	}
}

func TestEveryDifferenceIsSeen(t *testing.T) {
	b := image(3*Piece, 0, Unit, 5*Unit, Piece, 3*Piece-1)
	want, err := Make(t.Context(), bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(b); at += Unit / 2 {
		b[at] ^= 1
		m, err := Make(t.Context(), bytes.NewReader(b), int64(len(b)))
		if err != nil || m.Differs(want) == nil {
			t.Errorf("byte %d turned, and nothing said: %v", at, err)
		}
		b[at] ^= 1
	}
	short, _ := Make(t.Context(), bytes.NewReader(b), int64(len(b)-Unit))
	if short.Differs(want) == nil {
		t.Error("a shorter image is the same")
	}
}

func TestHolesOfAFileAreZeros(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 40*Piece + 777
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{7 * Piece, 20*Piece - 3, size - 1} {
		if _, err := f.WriteAt([]byte("x")[:1], at); err != nil {
			t.Fatal(err)
		}
	}
	want, err := Make(t.Context(), f, size)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := MakeFile(t.Context(), f); err != nil || len(got.Runs) != 3 || got.Differs(want) != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseRefuses(t *testing.T) {
	m, _ := Make(t.Context(), bytes.NewReader(image(2*Piece, 0, Piece)), 2*Piece)
	good := string(m.Encode())
	big := &Map{Size: 4 * Piece, Runs: []Run{{Off: 0, Len: 2 * Piece}}}
	for name, c := range map[string]struct {
		text string
		err  error
	}{
		"nothing":    {"", nil},
		"no XML":     {"<bmap", nil},
		"other XML":  {"<a/>", nil},
		"flipped":    {strings.Replace(good, " 256 ", " 257 ", 1), nil},
		"no sum":     {strings.Replace(good, "BmapFileChecksum", "Other", 2), nil},
		"other size": {strings.Replace(good, "<BlockSize> 4096", "<BlockSize> 512", 1), ErrForeign},
		"foreign":    {string(big.Encode()), ErrForeign},
	} {
		if got, err := Parse([]byte(c.text)); err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// bmaptool, where it is installed, copies by a map of ours.
func TestBmaptoolReadsIt(t *testing.T) {
	testtool.Find(t, "bmap-tools", "bmaptool")
	dir := t.TempDir()
	b := image(5*Piece, 0, 3*Unit, Piece-1, Piece, 4*Piece+77)
	m, err := Make(t.Context(), bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for name, data := range map[string][]byte{in: b, in + ".bmap": m.Encode()} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := exec.Command("bmaptool", "copy", in, out).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the copy differs, %v", err)
	}
}

func FuzzParse(f *testing.F) {
	m, _ := Make(f.Context(), bytes.NewReader(image(2*Piece, 0, Piece)), 2*Piece)
	f.Add(m.Encode())
	f.Add([]byte("<bmap version=\"2.0\"><BlockMap><Range chksum=\"\">1-2</Range></BlockMap></bmap>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(m.Encode())
		if err != nil || again.Differs(m) != nil {
			t.Errorf("%+v reads back as %+v, %v", m, again, err)
		}
	})
}
