package ext4img

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func options(size int64) Options {
	return Options{Size: size, UUID: [16]byte{1, 2, 15: 3}, HashSeed: [16]byte{4, 5, 15: 6}, Time: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
}

func tool(t *testing.T, name string) string {
	t.Helper()
	p, err := find(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestImageIsClean(t *testing.T) {
	fsck, dump := tool(t, "e2fsck"), tool(t, "dumpe2fs")
	for name, size := range map[string]int64{"smallest": MinSize, "256MiB": 256 << 20, "1GiB": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			p := filepath.Join(t.TempDir(), "data.img")
			if err := Make(context.Background(), p, options(size)); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(fsck, "-fn", p).CombinedOutput(); err != nil {
				t.Fatalf("e2fsck: %v\n%s", err, out)
			}
			out, err := exec.Command(dump, "-h", p).CombinedOutput()
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				`Filesystem volume name: +kingpost-data`,
				`Filesystem UUID: +01020000-0000-0000-0000-000000000003`,
				`Directory Hash Seed: +04050000-0000-0000-0000-000000000006`,
				`Filesystem features: +has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg sparse_super large_file huge_file dir_nlink extra_isize quota metadata_csum project verity\n`,
				`Block size: +4096`,
				`Inodes per group: +8192`,
				`Reserved GDT blocks: +511\n`,
				`Total journal size: +16M`,
				`Last write time: +Tue Dec +1`,
			} {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
			st, err := os.Stat(p)
			if err != nil || st.Size() != size {
				t.Fatalf("%v, %v", st, err)
			}
		})
	}
}

func TestImageIsRepeatable(t *testing.T) {
	tool(t, "mke2fs")
	var all [2][]byte
	for i := range all {
		p := filepath.Join(t.TempDir(), "data.img")
		if err := Make(context.Background(), p, options(MinSize)); err != nil {
			t.Fatal(err)
		}
		var err error
		if all[i], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond) // another second of the clock
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("two images differ")
	}
}

func TestRootFolderIsRoots(t *testing.T) {
	debugfs := tool(t, "debugfs")
	p := filepath.Join(t.TempDir(), "data.img")
	if err := Make(context.Background(), p, options(MinSize)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(debugfs, "-R", "stat /", p).CombinedOutput()
	if err != nil || !regexp.MustCompile(`User: +0 +Group: +0`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMakeRefuses(t *testing.T) {
	for name, edit := range map[string]func(*Options){
		"too small": func(o *Options) { o.Size = MinSize - BlockSize },
		"crooked":   func(o *Options) { o.Size++ },
		"no UUID":   func(o *Options) { o.UUID = [16]byte{} },
		"no seed":   func(o *Options) { o.HashSeed = [16]byte{} },
		"no time":   func(o *Options) { o.Time = time.Unix(0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(MinSize)
			edit(&o)
			p := filepath.Join(t.TempDir(), "data.img")
			if err := Make(context.Background(), p, o); err == nil {
				t.Error("accepted")
			}
			if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
				t.Error("there is a file")
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		tool(t, "mke2fs")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		p := filepath.Join(t.TempDir(), "data.img")
		if err := Make(ctx, p, options(MinSize)); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
			t.Errorf("error is %v", err)
		}
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Error("there is a file")
		}
	})
}
