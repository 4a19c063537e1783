package artifact

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"testing"
)

// elfProgram is a small 64-bit ELF file: a header, one segment to load and, with loader, one that names it.
func elfProgram(machine, kind uint16, loader string) []byte {
	var b bytes.Buffer
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	n := uint16(1)
	if loader != "" {
		n = 2
	}
	end := uint64(64 + 56*int(n))
	write := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	write([]uint16{kind, machine})
	write(uint32(1))
	write([]uint64{0x400000, 64, 0})
	write(uint32(0))
	write([]uint16{64, 56, n, 64, 0, 0})
	segment := func(typ uint32, off, size uint64) {
		write([]uint32{typ, 5})
		write([]uint64{off, 0x400000, 0x400000, size, size, 1})
	}
	segment(1, end, 16)
	if loader != "" {
		segment(3, end+16, uint64(len(loader)+1))
	}
	b.Write(make([]byte, 16))
	if loader != "" {
		b.WriteString(loader + "\x00")
	}
	return b.Bytes()
}

func programFile(p string, mode uint32, data []byte) File {
	return File{Path: p, Mode: mode, Size: int64(len(data)), Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

func TestCheckProgram(t *testing.T) {
	const amd64, arm64, exec, dyn, object = 62, 183, 2, 3, 1
	good := elfProgram(amd64, exec, "")
	loaded := elfProgram(amd64, dyn, "/lib64/ld-linux-x86-64.so.2")
	one := func(data []byte) []File { return []File{programFile("bin/web", 0o755, data)} }
	for name, c := range map[string]struct {
		files         []File
		warning, fail string
	}{
		"static":                     {one(good), "", ""},
		"position independent":       {one(elfProgram(amd64, dyn, "")), "", ""},
		"dynamic":                    {one(loaded), "linked dynamically, and its loader /lib64/ld-linux-x86-64.so.2 is not in the bundle", ""},
		"dynamic, with its loader":   {append(one(elfProgram(amd64, dyn, "/app/lib/ld.so")), programFile("lib/ld.so", 0o755, good)), "", ""},
		"script":                     {one([]byte("#!/bin/sh -e\n")), "its interpreter /bin/sh is not in the bundle", ""},
		"script, with interpreter":   {append(one([]byte("#! /app/bin/sh\n")), programFile("bin/sh", 0o755, good)), "", ""},
		"script without interpreter": {one([]byte("#!\n")), "", "names no interpreter"},
		"script, relative":           {one([]byte("#!sh\n")), "", "names no interpreter"},
		"missing":                    {[]File{programFile("bin/other", 0o755, good)}, "", "bin/web is not in the bundle"},
		"through a link":             {[]File{{Path: "bin/web", Link: "../web"}, programFile("web", 0o755, good)}, "", ""},
		"a link to nothing":          {[]File{{Path: "bin/web", Link: "../web"}}, "", "a link to web, which is not in the bundle"},
		"links in a circle":          {[]File{{Path: "bin/web", Link: "web"}}, "", "circle"},
		"empty":                      {one(nil), "", "is empty"},
		"not executable":             {[]File{programFile("bin/web", 0o644, good)}, "", "not executable"},
		"text":                       {one([]byte("hello\n")), "", "neither an ELF program nor a script"},
		"four bytes":                 {one(good[:4]), "", "truncated ELF"},
		"cut in its tables":          {one(good[:80]), "", "truncated"},
		"cut in its content":         {one(good[:len(good)-1]), "", "truncated: a segment ends at"},
		"another architecture":       {one(elfProgram(arm64, exec, "")), "", "a program for EM_AARCH64"},
		"an object file":             {one(elfProgram(amd64, object, "")), "", "no program"},
	} {
		t.Run(name, func(t *testing.T) {
			warning, err := CheckProgram(c.files, "bin/web", "amd64")
			if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
				t.Fatalf("error %v, want %q", err, c.fail)
			}
			if (warning == "") != (c.warning == "") || !strings.Contains(warning, c.warning) {
				t.Errorf("warning %q, want %q", warning, c.warning)
			}
		})
	}
	for _, arch := range Architectures() {
		if _, ok := machine(arch); !ok {
			t.Errorf("no machine for %s", arch)
		}
	}
}

// What Go builds here is a program for here, and cut anywhere in its middle it is none.
func TestCheckProgramOfGo(t *testing.T) {
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	_, _, here := inspectProgram(section(data), "amd64")
	_, _, there := inspectProgram(section(data), "arm64")
	if (here == nil) == (there == nil) {
		t.Fatalf("amd64: %v, arm64: %v", here, there)
	}
	if _, _, err := inspectProgram(section(data[:len(data)/2]), "amd64"); err == nil {
		t.Error("half a program passes")
	}
}

func FuzzInspectProgram(f *testing.F) {
	f.Add(elfProgram(62, 3, "/lib/ld.so"))
	f.Add([]byte("#!/bin/sh\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		interpreter, _, err := inspectProgram(section(b), "amd64")
		if err == nil && interpreter == "" && !bytes.HasPrefix(b, []byte("\x7fELF")) {
			t.Fatalf("%q passes as a program", b)
		}
	})
}

func section(b []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
}
