package iso9660

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kingpost/internal/testtool"
)

// image is an image in memory.
type image []byte

func (b image) WriteAt(p []byte, off int64) (int, error) { return copy(b[off:], p), nil }

func good() Volume {
	return Volume{
		Size: 1 << 20, Label: "KINGPOST", Time: time.Date(2026, 12, 1, 13, 14, 15, 0, time.FixedZone("", 7200)), Boot: "EFI.IMG",
		Files: []File{{"ROOT.IMG", 512 << 10, 5000}, {"EFI.IMG", End, 100_000}},
	}
}

// TestByXorriso has another program read the volume, its boot entry and its files.
func TestByXorriso(t *testing.T) {
	xorriso := testtool.Find(t, "xorriso", "xorriso")
	b := make(image, 1<<20)
	for i := range b {
		b[i] = byte(i % 251) // what is there before
	}
	root := bytes.Clone(b[512<<10 : 512<<10+5000])
	if err := Write(b, good()); err != nil {
		t.Fatal(err)
	}
	if b[0] != 0 || b[251] != 0 || b[32<<10-1] != byte((32<<10-1)%251) || b[End] != byte(End%251) {
		t.Error("it wrote into the system area, or behind its end")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "cd")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(xorriso, "-osirrox", "on", "-indev", file, "-toc", "-pvd_info", "-report_el_torito", "plain",
		"-find", "/", "-exec", "lsdl", "--", "-extract", "/ROOT.IMG", filepath.Join(dir, "root")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{
		"KINGPOST", "512 data blocks", "El Torito cat path : /BOOT.CAT", "El Torito boot img :   1  UEFI  y   none  0x0000  0x00    196          32",
		"El Torito img path :   1  /EFI.IMG", "5000 Dec  1  2026 '/ROOT.IMG'", "Creation Time: 2026120111141500",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "root")); err != nil || !bytes.Equal(got, root) {
		t.Errorf("/ROOT.IMG has %d bytes, or others: %v", len(got), err)
	}
}

// TestLargeBoot has an EFI file system whose size 16 bits cannot say: 0 is "to the end" (UEFI, 13.3.2.1).
func TestLargeBoot(t *testing.T) {
	for size, want := range map[int64]uint16{65535 * 512: 65535, 65535*512 + 1: 0, 512: 1} {
		v := good()
		v.Size, v.Files = 64<<20, []File{{"EFI.IMG", End, size}}
		b := make(image, End)
		if err := Write(b, v); err != nil {
			t.Fatal(err)
		}
		e := b[sectorCatalog*SectorSize+32:]
		if got := uint16(e[6]) | uint16(e[7])<<8; got != want {
			t.Errorf("%d bytes are said to be %d sectors, not %d", size, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, change := range map[string]func(*Volume){
		"no whole sectors":   func(v *Volume) { v.Size++ },
		"too small":          func(v *Volume) { v.Size = 2048 },
		"above 8 TiB":        func(v *Volume) { v.Size = 8<<40 + 1<<20 },
		"label":              func(v *Volume) { v.Label = "kingpost" },
		"long label":         func(v *Volume) { v.Label = strings.Repeat("A", 33) },
		"no label":           func(v *Volume) { v.Label = "" },
		"year":               func(v *Volume) { v.Time = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC) },
		"nothing to start":   func(v *Volume) { v.Boot = "OTHER.IMG" },
		"two of a name":      func(v *Volume) { v.Files = append(v.Files, v.Files[0]) },
		"the catalogue":      func(v *Volume) { v.Files[0].Name = catalogName },
		"lower case":         func(v *Volume) { v.Files[0].Name = "root.img" },
		"long name":          func(v *Volume) { v.Files[0].Name = "ROOTROOTR.IMG" },
		"long ending":        func(v *Volume) { v.Files[0].Name = "ROOT.IMAG" },
		"a path":             func(v *Volume) { v.Files[0].Name = "A/B" },
		"inside its own":     func(v *Volume) { v.Files[0].Start = End - SectorSize },
		"between sectors":    func(v *Volume) { v.Files[0].Start += 512 },
		"past the end":       func(v *Volume) { v.Files[0].Size = 1 << 20 },
		"negative":           func(v *Volume) { v.Files[0].Size = -1 },
		"larger than a file": func(v *Volume) { v.Size, v.Files[0].Size = 1<<40, MaxFile+1 },
		"many": func(v *Volume) {
			for i := range 60 {
				v.Files = append(v.Files, File{"F" + string(rune('A'+i/26)) + string(rune('A'+i%26)), End, 1})
			}
		},
	} {
		v := good()
		change(&v)
		b := make(image, 1<<20)
		if err := Write(b, v); err == nil {
			t.Errorf("%s: written", name)
		}
		if !bytes.Equal(b, make(image, 1<<20)) {
			t.Errorf("%s: something was written all the same", name)
		}
	}
}
