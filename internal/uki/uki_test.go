package uki

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// stub makes a PE image with one section, as small as one can be, and with room for more headers.
func stub(t testing.TB, edit func(*pe.OptionalHeader64)) []byte {
	t.Helper()
	var b bytes.Buffer
	b.Write(append([]byte{'M', 'Z'}, make([]byte, 0x3e)...))
	binary.LittleEndian.PutUint32(b.Bytes()[0x3c:], 0x40)
	b.WriteString("PE\x00\x00")
	opt := pe.OptionalHeader64{Magic: 0x20b, SectionAlignment: 4096, FileAlignment: 512, SizeOfImage: 0x3000,
		SizeOfHeaders: 0x200, Subsystem: pe.IMAGE_SUBSYSTEM_EFI_APPLICATION, NumberOfRvaAndSizes: 16, AddressOfEntryPoint: 0x1000}
	if edit != nil {
		edit(&opt)
	}
	for _, v := range []any{
		pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1, SizeOfOptionalHeader: uint16(binary.Size(opt)), Characteristics: 0x22e},
		opt,
		pe.SectionHeader32{Name: [8]uint8{'.', 't', 'e', 'x', 't'}, VirtualSize: 0x1800, VirtualAddress: 0x1000, SizeOfRawData: 0x200, PointerToRawData: 0x400, Characteristics: 0x60000020},
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return append(b.Bytes(), make([]byte, 0x600-b.Len())...)
}

var sections = []Section{
	{OSRel, []byte("ID=kingpost\n")},
	{Cmdline, []byte("quiet")},
	{Uname, []byte("6.12")},
	{Initrd, bytes.Repeat([]byte("i"), 5000)},
	{Linux, bytes.Repeat([]byte("k"), 9001)},
}

// stubs are the made-up one and, where Debian's package systemd-boot-efi is installed, the real one.
func stubs(t *testing.T) map[string][]byte {
	m := map[string][]byte{"smallest": stub(t, nil)}
	for _, arch := range []string{"x64", "aa64"} {
		if b, err := os.ReadFile("/usr/lib/systemd/boot/efi/linux" + arch + ".efi.stub"); err == nil {
			m["systemd."+arch] = b
		}
	}
	return m
}

func TestBuildAndRead(t *testing.T) {
	for name, st := range stubs(t) {
		t.Run(name, func(t *testing.T) {
			out, err := Build(st, sections)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := Build(st, sections)
			if !bytes.Equal(out, again) {
				t.Error("two builds differ")
			}
			img, err := Read(bytes.NewReader(out), int64(len(out)))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range sections {
				r := img.Section(s.Name)
				if r == nil {
					t.Fatalf("section %s is missing", s.Name)
				}
				if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, s.Data) {
					t.Errorf("section %s holds %d bytes, %v", s.Name, len(b), err)
				}
			}
			if s, err := img.Text(Cmdline); err != nil || s != "quiet" {
				t.Errorf("command line is %q, %v", s, err)
			}
			if s, err := img.Text(".none"); err != nil || s != "" {
				t.Errorf("a missing section is %q, %v", s, err)
			}
			f, err := pe.NewFile(bytes.NewReader(out))
			if err != nil {
				t.Fatal(err)
			}
			end := uint32(0)
			for _, s := range f.Sections {
				if s.VirtualAddress < end {
					t.Errorf("section %s at %#x lies over the one before, which ends at %#x", s.Name, s.VirtualAddress, end)
				}
				end = s.VirtualAddress + s.VirtualSize
			}
			if o := f.OptionalHeader.(*pe.OptionalHeader64); o.SizeOfImage < end || o.SizeOfImage%4096 != 0 {
				t.Errorf("size of image is %#x, the last section ends at %#x", o.SizeOfImage, end)
			}
		})
	}
}

func TestObjdumpSeesTheSections(t *testing.T) {
	if _, err := exec.LookPath("objdump"); err != nil {
		t.Fatal("objdump is not installed; make test installs its package, binutils")
	}
	for name, st := range stubs(t) {
		if name == "systemd.aa64" {
			continue // the machine's objdump need not know it
		}
		t.Run(name, func(t *testing.T) {
			out, err := Build(st, sections)
			if err != nil {
				t.Fatal(err)
			}
			p := filepath.Join(t.TempDir(), "uki.efi")
			if err := os.WriteFile(p, out, 0o600); err != nil {
				t.Fatal(err)
			}
			dump, err := exec.Command("objdump", "-h", p).CombinedOutput()
			if err != nil || strings.Contains(string(dump), "warning") {
				t.Fatalf("objdump: %v\n%s", err, dump)
			}
			for _, s := range sections {
				if !regexp.MustCompile(`(?m)^ *\d+ ` + regexp.QuoteMeta(s.Name) + ` `).Match(dump) {
					t.Errorf("objdump does not see %s:\n%s", s.Name, dump)
				}
			}
		})
	}
}

func TestBuildRefuses(t *testing.T) {
	many := make([]Section, 40)
	for i := range many {
		many[i] = Section{Name: string(rune('a' + i)), Data: []byte("x")}
	}
	for name, c := range map[string]struct {
		stub     []byte
		sections []Section
	}{
		"no PE":            {[]byte("hello"), sections},
		"nothing":          {nil, sections},
		"signed stub":      {stub(t, func(o *pe.OptionalHeader64) { o.DataDirectory[4].Size = 8 }), sections},
		"no alignment":     {stub(t, func(o *pe.OptionalHeader64) { o.FileAlignment = 0 }), sections},
		"crooked":          {stub(t, func(o *pe.OptionalHeader64) { o.FileAlignment = 24 }), sections},
		"long name":        {stub(t, nil), []Section{{".toolong1", []byte("x")}}},
		"twice":            {stub(t, nil), []Section{{".a", []byte("x")}, {".a", []byte("y")}}},
		"there already":    {stub(t, nil), []Section{{".text", []byte("x")}}},
		"empty":            {stub(t, nil), []Section{{".a", nil}}},
		"no room for more": {stub(t, nil), many},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Build(c.stub, c.sections); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestReadRefusesATruncatedImage(t *testing.T) {
	out, err := Build(stub(t, nil), sections)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(out), int64(len(out)-5000)); err == nil {
		t.Error("accepted")
	}
}

func FuzzRead(f *testing.F) {
	out, err := Build(stub(f, nil), sections)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(out)
	f.Add(stub(f, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if img, err := Read(bytes.NewReader(b), int64(len(b))); err == nil {
			for _, s := range img.Sections {
				if _, err := io.Copy(io.Discard, s); err != nil {
					t.Errorf("section %q: %v", s.Name, err)
				}
			}
			_, _ = img.Text(Cmdline)
		}
		_, _ = Build(b, sections)
	})
}
