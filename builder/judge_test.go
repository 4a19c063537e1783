package builder

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kingpost/internal/blockmap"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
	"kingpost/internal/testtool"
)

// judge runs another program's opinion and returns what it says. The package is what to install.
func judge(t *testing.T, pkg, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(testtool.Find(t, pkg, name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func says(t *testing.T, said string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("it does not say %q:\n%s", w, said)
		}
	}
}

// judgeOutputs has every output in dir opened by somebody else's program.
func judgeOutputs(t *testing.T, dir string, res *Result) {
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	disk := at(FileDisk)
	t.Run("files", func(t *testing.T) {
		var want, got []string
		for _, o := range Outputs() {
			want = append(want, o.Files("vm")...)
		}
		for _, f := range res.Files {
			got = append(got, f.Name)
		}
		slices.Sort(want)
		if want = slices.Compact(want); !slices.Equal(want, got) {
			t.Errorf("the outputs say that they write %v, release.json has %v", want, got)
		}
		err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && name != FileRelease && !slices.Contains(want, name) {
				err = fmt.Errorf("%s is no output", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{FileDisk, FileDisk4K, FileDataDisk, FileISO("vm")} {
		t.Run(name, func(t *testing.T) {
			if name == FileDisk4K {
				judge4K(t, at(name))
				return
			}
			says(t, judge(t, "gdisk", "sgdisk", "-v", at(name)), "No problems found")
			judgePartitions(t, at(name))
		})
	}
	t.Run("block map", func(t *testing.T) {
		copied := filepath.Join(t.TempDir(), "copied")
		judge(t, "bmap-tools", "bmaptool", "copy", "--bmap", at(FileMap), disk, copied)
		same(t, copied, disk)
	})
	t.Run(FileZst, func(t *testing.T) {
		judge(t, "zstd", "zstd", "-tq", at(FileZst))
		raw := filepath.Join(t.TempDir(), "raw")
		judge(t, "zstd", "zstd", "-dq", "--sparse", "-o", raw, at(FileZst))
		same(t, raw, disk)
		if st, err := os.Stat(at(FileZst)); err != nil || st.Size() > 75<<20 {
			t.Errorf("the release for a virtual machine has %d bytes, at most 75 MB are good: %v", st.Size(), err)
		}
	})
	t.Run("El Torito", func(t *testing.T) {
		said := judge(t, "xorriso", "xorriso", "-indev", at(FileISO("vm")), "-report_el_torito", "plain", "-report_system_area", "plain")
		says(t, said, "El Torito boot img :   1  UEFI  y   none", "El Torito img path :   1  /EFI.IMG", "GPT partition path :   1  /EFI.IMG", "GPT partition path :   2  /ROOT.IMG")
		root := filepath.Join(t.TempDir(), "root")
		judge(t, "xorriso", "xorriso", "-osirrox", "on", "-indev", at(FileISO("vm")), "-extract", "/ROOT.IMG", root)
		same(t, root, at(FileRoot))
	})
	for _, o := range vmOutputs() {
		format := o.Info().Name
		t.Run(format, func(t *testing.T) {
			file := at(o.Files("vm")[0])
			says(t, judge(t, "qemu-utils", "qemu-img", "check", "-f", format, file), "No errors")
			says(t, judge(t, "qemu-utils", "qemu-img", "compare", "-f", format, "-F", "raw", file, disk), "Images are identical")
			says(t, judge(t, "qemu-utils", "qemu-img", "info", file), "virtual size: 8 GiB")
		})
	}
	t.Run(netbootDir, func(t *testing.T) {
		same(t, at(netbootDir+"/"+FileRoot), at(FileRoot))
		in, err := os.Open(at(netbootRoot))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cmd := exec.Command("cpio", "-i", "--quiet")
		cmd.Dir, cmd.Stdin = t.TempDir(), in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cpio: %v: %s", err, out)
		}
		same(t, filepath.Join(cmd.Dir, FileRoot), at(FileRoot))
		script, err := os.ReadFile(at(netbootScript))
		if err != nil {
			t.Fatal(err)
		}
		says(t, string(script), "#!ipxe\n", "\ninitrd root.cpio\n", " "+res.Cmdline+"\nboot\n")
	})
}

// judgePartitions has the file systems of a raw disk checked.
func judgePartitions(t *testing.T, disk string) {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	table, err := release.ReadGPT(f, st.Size(), 0)
	if err != nil {
		t.Fatal(err)
	}
	cut := func(p gpt.Partition) string {
		file := filepath.Join(t.TempDir(), p.Name)
		if _, err := writeFile(file, func(w io.Writer) error {
			_, err := io.Copy(w, io.NewSectionReader(f, p.Start, p.Size))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, p := range table.Partitions {
		switch p.Name {
		case release.PartESP:
			judge(t, "dosfstools", "fsck.vfat", "-n", cut(p))
		case release.PartRootA:
			judge(t, "erofs-utils", "fsck.erofs", cut(p))
		case release.PartData:
			judge(t, "e2fsprogs", "e2fsck", "-fn", cut(p))
		}
	}
}

// judge4K judges an image with sectors of 4096 bytes: sgdisk takes those of a file for 512.
func judge4K(t *testing.T, file string) {
	t.Helper()
	judgePartitions(t, file)
	said := judge(t, "fdisk", "fdisk", "-b", "4096", "-o", "Start,Name", "-l", file)
	says(t, said, "Disklabel type: gpt", "256 kingpost-esp", "kingpost-data")
	if strings.Contains(said, "corrupt") {
		t.Error(said)
	}
}

// same compares two files by what is in them.
func same(t *testing.T, a, b string) {
	t.Helper()
	var maps [2]*blockmap.Map
	for i, name := range []string{a, b} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if maps[i], err = blockmap.MakeFile(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := maps[0].Differs(maps[1]); err != nil {
		t.Errorf("%s is not what %s is: %v", a, b, err)
	}
}
