package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

// measureBuilder measures what it takes to build, and what comes out.
func measureBuilder(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp("", "kingpost-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := b.rebuild(ctx, filepath.Join(dir, "changed")); err != nil {
		return err
	}
	if err := b.identical(ctx, dir); err != nil {
		return err
	}
	return b.sizes(ctx, dir)
}

// copySources copies the files of the repository that git knows.
func (b *bench) copySources(ctx context.Context, to string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z")
	list.Dir = b.lab.Root
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the sources: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		from := filepath.Join(b.lab.Root, name)
		st, err := os.Stat(from)
		if err != nil {
			return fmt.Errorf("copy the sources: %w", err)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("copy the sources: %w", err)
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), data, st.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// build runs `kingpost build` in a copy of the sources and returns the wall seconds.
func (b *bench) build(ctx context.Context, sources, recipe string, user *syscall.Credential, env ...string) (float64, error) {
	kingpost, err := filepath.Abs(b.lab.Kingpost)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, kingpost, "build", recipe)
	cmd.Dir, cmd.Env = sources, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("kingpost build %s: %w: %s", recipe, err, tail(out))
	}
	return time.Since(start).Seconds(), nil
}

// rebuild changes one Go file of the host and builds everything again, caches warm: the median of five.
func (b *bench) rebuild(ctx context.Context, sources string) error {
	if err := b.copySources(ctx, sources); err != nil {
		return err
	}
	if _, err := b.build(ctx, sources, "images/vm.yaml", nil); err != nil {
		return err
	}
	var took []float64
	for i := range 5 {
		// A string that the program keeps, so that it really is another program each time.
		text := fmt.Sprintf("package main\n\nimport \"os\"\n\nfunc init() {\n\tif len(os.Args) > 9999 {\n\t\tprintln(%q)\n\t}\n}\n", fmt.Sprint(i, time.Now().UnixNano()))
		if err := os.WriteFile(filepath.Join(sources, "cmd", "mesh-host", "changed.go"), []byte(text), 0o644); err != nil {
			return err
		}
		t, err := b.build(ctx, sources, "images/vm.yaml", nil)
		if err != nil {
			return err
		}
		took = append(took, t)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	b.add("builder.rebuild", median, "s", 5, "one changed Go file in the host, whole kingpost build images/vm.yaml; median of %.2f", took)
	p, err := b.mkosi(ctx)
	if err != nil {
		b.miss("builder.rebuild-of-peer", err.Error())
		return nil
	}
	b.add("builder.rebuild-of-peer", median/p.rebuild, "times", 0.15, "%.2f s beside mkosi's incremental %.1f s", median, p.rebuild)
	return nil
}

// identical builds the same inputs in two folders, at two times, with empty and separate caches for what is made, and as two
// users where this one is root.
func (b *bench) identical(ctx context.Context, dir string) error {
	var sums [2]map[string]string
	who := "one user (another needs root)"
	for i, name := range []string{"first", "a/second/folder"} {
		sources := filepath.Join(dir, name)
		if err := b.copySources(ctx, sources); err != nil {
			return err
		}
		var user *syscall.Credential
		var env []string
		if i == 1 && os.Getuid() == 0 {
			who = "root and another user"
			const nobody = 65534
			user = &syscall.Credential{Uid: nobody, Gid: nobody}
			home := filepath.Join(dir, "home")
			if err := os.MkdirAll(home, 0o755); err != nil {
				return err
			}
			env = []string{"HOME=" + home, "USER=nobody", "XDG_CACHE_HOME=" + home + "/cache", "KINGPOST_CACHE=" + home + "/kingpost", "GOCACHE=" + home + "/go", "GOMODCACHE=" + home + "/mod", "GOPATH=" + home + "/path", "GOFLAGS=-modcacherw"}
			for _, d := range []string{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a/second")} {
				if err := os.Chmod(d, 0o755); err != nil {
					return err
				}
			}
			if err := chown(home, nobody); err != nil {
				return err
			}
			if err := chown(sources, nobody); err != nil {
				return err
			}
		}
		if _, err := b.build(ctx, sources, "images/vm.yaml", user, env...); err != nil {
			return err
		}
		var err error
		if sums[i], err = sumFiles(filepath.Join(sources, "out", "vm")); err != nil {
			return err
		}
	}
	var differ []string
	for name := range sums[0] {
		if sums[0][name] != sums[1][name] {
			differ = append(differ, name)
		}
	}
	for name := range sums[1] {
		if _, ok := sums[0][name]; !ok {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	b.add("builder.differing-files", float64(len(differ)), "files", 0, "%d output files of two builds in two folders, at two times, by %s; different: %v", len(sums[0]), who, differ)
	return nil
}

func chown(dir string, id int) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
}

func sumFiles(dir string) (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		sums[name] = hex.EncodeToString(h.Sum(nil))
		return err
	})
	if err == nil && len(sums) == 0 {
		err = fmt.Errorf("the build left nothing in %s", dir)
	}
	return sums, err
}

// sizes compresses the raw images.
func (b *bench) sizes(ctx context.Context, dir string) error {
	for _, image := range []struct {
		name  string
		limit float64
	}{{"vm", 100}, {"node", 200}} {
		if _, err := b.build(ctx, filepath.Join(dir, "first"), "images/"+image.name+".yaml", nil); err != nil {
			return err
		}
		disk := filepath.Join(dir, "first", "out", image.name, "disk.img")
		size, raw, err := compressed(disk)
		if err != nil {
			return err
		}
		b.add("builder."+image.name+"-image", float64(size)/1e6, "MB", image.limit, "disk.img of %s.yaml, %d MB with its holes, zstd level 3", image.name, raw/1e6)
	}
	return nil
}

// compressed counts the bytes of a file after zstd at its default level, as `zstd FILE` makes it.
func compressed(path string) (size, raw int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	var n counter
	z, err := zstd.NewWriter(&n, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(3)))
	if err != nil {
		return 0, 0, err
	}
	if raw, err = io.Copy(z, f); err != nil {
		return 0, 0, err
	}
	return int64(n), raw, z.Close()
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// tail is the end of what a program printed.
func tail(b []byte) []byte {
	b = bytes.TrimSpace(b)
	return b[max(len(b)-2000, 0):]
}
