package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"kingpost/internal/blockmap"
)

// diskRuns is how often each program writes; the middle one counts, as one run meets whatever else the disk does.
const diskRuns = 5

// measureDisk times `kingpost flash` beside the programs that people use for it, onto new files of the same file system, and
// counts the fault states that its tests try.
func measureDisk(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp(filepath.Dir(b.lab.Image), ".bench-disk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &diskBench{b: b, dir: dir, image: b.lab.Image}
	if err := d.raw(ctx); err != nil {
		return err
	}
	if err := d.compressed(ctx); err != nil {
		return err
	}
	if err := d.dirty(ctx); err != nil {
		return err
	}
	return d.faults(ctx)
}

type diskBench struct {
	b          *bench
	dir, image string
}

// flash runs the operator's program.
func (d *diskBench) flash(image, to string, more ...string) []string {
	return append([]string{d.b.lab.Kingpost, "flash", image, to, "--receipt", filepath.Join(d.dir, "receipt.json")}, more...)
}

// times runs programs in turn, each onto a new file, and returns the middle of what each took. A program of several steps is a
// shell's line.
func (d *diskBench) times(ctx context.Context, programs map[string][]string) (map[string]float64, error) {
	all := map[string][]float64{}
	names := make([]string, 0, len(programs))
	for n := range programs {
		names = append(names, n)
	}
	slices.Sort(names)
	for range diskRuns {
		for _, n := range names {
			files, err := filepath.Glob(filepath.Join(d.dir, "to-*"))
			if err != nil {
				return nil, err
			}
			for _, f := range files {
				if err := os.Remove(f); err != nil {
					return nil, err
				}
			}
			syscall.Sync() // what the one before left is not this one's to write
			start := time.Now()
			cmd := exec.CommandContext(ctx, programs[n][0], programs[n][1:]...)
			cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w: %s", strings.Join(programs[n], " "), err, bytes.TrimSpace(out))
			}
			all[n] = append(all[n], time.Since(start).Seconds())
		}
	}
	middle := map[string]float64{}
	for n, t := range all {
		slices.Sort(t)
		middle[n] = t[len(t)/2]
	}
	return middle, nil
}

func (d *diskBench) to(name string) string { return filepath.Join(d.dir, "to-"+name) }

func (d *diskBench) raw(ctx context.Context) error {
	programs := map[string][]string{
		"flash": d.flash(d.image, d.to("flash")),
		"dd":    {"dd", "if=" + d.image, "of=" + d.to("dd"), "bs=4M", "conv=fsync", "status=none"},
	}
	if _, err := exec.LookPath("bmaptool"); err == nil {
		programs["bmaptool"] = []string{"bmaptool", "-q", "copy", d.image, d.to("bmaptool")}
	}
	t, err := d.times(ctx, programs)
	if err != nil {
		return err
	}
	note := "flash %.2f s with verify and read-back, %s %.2f s, the middle of %d runs each"
	if peer, ok := t["bmaptool"]; ok {
		d.b.add("disk.flash-of-bmaptool", t["flash"]/peer, "times", 1.15, note, t["flash"], "bmaptool copy (no read-back)", peer, diskRuns)
	} else {
		d.b.miss("disk.flash-of-bmaptool", "bmaptool is not installed (Debian package bmap-tools)")
	}
	d.b.add("disk.flash-of-dd", t["flash"]/t["dd"], "times", 0.3, note, t["flash"], "dd conv=fsync", t["dd"], diskRuns)

	f, err := os.Open(d.image)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := blockmap.MakeFile(ctx, f)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(d.to("flash")); err != nil {
		return err
	}
	args := d.flash(d.image, d.to("flash"))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("flash: %w: %s", err, out)
	}
	st, err := os.Stat(d.to("flash"))
	if err != nil {
		return err
	}
	// What a new file takes of its disk is what was written to it.
	written := st.Sys().(*syscall.Stat_t).Blocks * 512
	d.b.add("disk.written-of-mapped", float64(written)/float64(m.Mapped()), "times", 1.02, "%d bytes written to a new file, %d mapped in the image", written, m.Mapped())
	return nil
}

func (d *diskBench) compressed(ctx context.Context) error {
	packed := filepath.Join(d.dir, "disk.img.zst")
	if err := compressFile(d.image, packed); err != nil {
		return err
	}
	// What vouches for an image lies beside it.
	for _, name := range []string{"release.json", "disk.img.bmap"} {
		raw, err := os.ReadFile(filepath.Join(filepath.Dir(d.image), name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(d.dir, name), raw, 0o644); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath("zstd"); err != nil {
		d.b.miss("disk.flash-zst-of-dd", "zstd is not installed")
		return nil
	}
	t, err := d.times(ctx, map[string][]string{
		"flash": d.flash(packed, d.to("flash")),
		"dd":    {"sh", "-c", fmt.Sprintf("zstd -dqf %s -o %s && dd if=%s of=%s bs=4M conv=fsync status=none", packed, d.to("raw"), d.to("raw"), d.to("dd"))},
	})
	if err != nil {
		return err
	}
	d.b.add("disk.flash-zst-of-dd", t["flash"]/t["dd"], "times", 0.5, "flash from .zst %.2f s, zstd -d and then dd conv=fsync %.2f s, the middle of %d runs each", t["flash"], t["dd"], diskRuns)
	return nil
}

func compressFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	z, err := zstd.NewWriter(out)
	if err != nil {
		return err
	}
	if _, err := io.Copy(z, in); err != nil {
		z.Close()
		return err
	}
	return z.Close()
}

// dirty flashes a block device full of old bytes and counts the blocks that should be zero and are not. A loop device is one; it
// needs root.
func (d *diskBench) dirty(ctx context.Context) error {
	const name = "disk.stale-blocks"
	st, err := os.Stat(d.image)
	if err != nil {
		return err
	}
	backing := d.to("backing")
	if out, err := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("yes old | head -c %d > %s", st.Size()+8<<20, backing)).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	out, err := exec.CommandContext(ctx, "/usr/sbin/losetup", "-f", "--show", backing).CombinedOutput()
	if err != nil {
		d.b.miss(name, fmt.Sprintf("no loop device: %v: %s", err, bytes.TrimSpace(out)))
		return nil
	}
	dev := strings.TrimSpace(string(out))
	defer exec.Command("/usr/sbin/losetup", "-d", dev).Run()
	args := d.flash(d.image, dev, "--yes", "--expect-serial", "none")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("flash %s: %w: %s", dev, err, bytes.TrimSpace(out))
	}
	stale, zeros, err := staleBlocks(d.image, dev, st.Size())
	if err != nil {
		return err
	}
	d.b.add(name, float64(stale), "blocks", 0, "of %d blocks of 4096 bytes that are zero in the image, on a block device that was full of old bytes", zeros)
	return nil
}

// staleBlocks counts the blocks that are zero in the image, and of these the ones that hold old bytes on the disk. What flash
// itself puts there (node.yaml, partition tables) is not "old".
func staleBlocks(image, dev string, size int64) (stale, zeros int, err error) {
	a, err := os.Open(image)
	if err != nil {
		return 0, 0, err
	}
	defer a.Close()
	b, err := os.Open(dev)
	if err != nil {
		return 0, 0, err
	}
	defer b.Close()
	want, got := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(want)) {
		n := min(int64(len(want)), size-off)
		if _, err := a.ReadAt(want[:n], off); err != nil {
			return 0, 0, err
		}
		if _, err := b.ReadAt(got[:n], off); err != nil {
			return 0, 0, err
		}
		for i := int64(0); i < n; i += 4096 {
			if !blockmap.IsZero(want[i : i+4096]) {
				continue
			}
			zeros++
			if bytes.Contains(got[i:i+4096], []byte("old\nold\n")) {
				stale++
			}
		}
	}
	return stale, zeros, nil
}

// faults runs the flasher's own fault injection, wider than `go test` does, and counts the states that it tried and survived. The
// figure is how many of the 20000 are missing.
func (d *diskBench) faults(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-v", "-count", "1", "-timeout", "60m", "-run", "^TestFaults$", "./installer/flash", "-fault-orders", "110", "-fault-tears", "120", "-fault-rerun", "500")
	cmd.Dir = d.b.lab.Root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("fault states: %w\n%s", err, out)
	}
	total := 0
	for _, m := range regexp.MustCompile(`fault states: (\d+) distinct \(\d+ of metadata\), and (\d+) of a second cut`).FindAllSubmatch(out, -1) {
		for _, n := range m[1:] {
			k, err := strconv.Atoi(string(n))
			if err != nil {
				return err
			}
			total += k
		}
	}
	d.b.add("disk.fault-states-missing", float64(max(0, 20000-total)), "states", 0, "%d distinct disks of cut, torn and reordered writes tried, all of them the old release, the new one or nothing", total)
	return nil
}
