package cpiofs

import (
	"bytes"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func sample() []Entry {
	return []Entry{
		{Path: "init", Mode: 0o755, Data: bytes.Repeat([]byte("mesh"), 100_000)},
		{Path: "modules/a/b.ko", Mode: 0o644, Data: []byte("b")},
		{Path: "modules/load", Mode: 0o644, Data: []byte("b.ko\n")},
		{Path: "sbin/init", Mode: fs.ModeSymlink, Link: "../init"},
		{Path: "dev", Mode: fs.ModeDir | 0o755},
		{Path: "empty", Mode: 0o600},
	}
}

func TestCpioReadsTheArchive(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteInitrd(&buf, sample()); err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(&buf)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Fatal("cpio is not installed; make test installs its package, cpio")
	}
	cmd := exec.Command("cpio", "-tv", "--quiet", "-n")
	cmd.Stdin = z
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	var got []string
	for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		f := strings.Fields(l)
		name := f[8]
		if len(f) > 9 {
			name = strings.Join(f[8:], " ")
		}
		got = append(got, f[0]+" "+f[2]+":"+f[3]+" "+f[4]+" "+name)
	}
	want := []string{
		"drwxr-xr-x 0:0 0 dev",
		"-rw------- 0:0 0 empty",
		"-rwxr-xr-x 0:0 400000 init",
		"drwxr-xr-x 0:0 0 modules",
		"drwxr-xr-x 0:0 0 modules/a",
		"-rw-r--r-- 0:0 1 modules/a/b.ko",
		"-rw-r--r-- 0:0 5 modules/load",
		"drwxr-xr-x 0:0 0 sbin",
		"lrwxrwxrwx 0:0 7 sbin/init -> ../init",
	}
	if !slices.Equal(got, want) {
		t.Errorf("cpio lists:\n%s", strings.Join(got, "\n"))
	}
}

func TestOrderOfEntriesDoesNotMatter(t *testing.T) {
	var a, b bytes.Buffer
	e := sample()
	if err := WriteInitrd(&a, e); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(e)
	if err := WriteInitrd(&b, e); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same entries in another order give other bytes")
	}
}

func TestWriteInitrdRefuses(t *testing.T) {
	for name, e := range map[string][]Entry{
		"absolute":        {{Path: "/init"}},
		"dotdot":          {{Path: "../init"}},
		"twice":           {{Path: "init"}, {Path: "init"}},
		"below a file":    {{Path: "init"}, {Path: "init/x"}},
		"link to nowhere": {{Path: "l", Mode: fs.ModeSymlink}},
		"device":          {{Path: "null", Mode: fs.ModeDevice}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := WriteInitrd(&bytes.Buffer{}, e); err == nil {
				t.Error("accepted")
			}
		})
	}
}
