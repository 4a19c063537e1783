package builder

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/testtool"
)

// realBuild are the options of a build of images/vm.yaml with the user's cache. Tests that need it fetch packages and
// modules when they run for the first time.
func realBuild(t *testing.T) Options {
	t.Helper()
	if testing.Short() {
		t.Skip("builds an image")
	}
	testtool.Find(t, "apt", "apt-get") // packages come through it
	cache, err := DefaultCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Recipe: "../images/vm.yaml", Out: t.TempDir(), Cache: cache}
}

// digests are the output files of a build with their digests.
func digests(res *Result) map[string]string {
	m := map[string]string{}
	for _, f := range res.Files {
		m[f.Name] = f.SHA256
	}
	return m
}

// copySources copies what git has of the repository, and what is new in it, to dir.
func copySources(t *testing.T, dir string) {
	t.Helper()
	out, err := exec.Command("git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("the sources are no git checkout: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		raw, err := os.ReadFile(filepath.Join("..", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBuildReproducible makes every output of the same sources twice: in two folders with two caches, of which the second
// has nothing but the packages, and with another umask, time zone and number of CPUs. Those of the first are judged by
// other programs.
func TestBuildReproducible(t *testing.T) {
	o := realBuild(t)
	for _, out := range Outputs() {
		o.Outputs = append(o.Outputs, out.Info().Name)
	}
	one, two := t.TempDir(), filepath.Join(t.TempDir(), "another", "and deeper")
	copySources(t, one)
	copySources(t, two)
	o.Recipe = filepath.Join(one, "images/vm.yaml")
	first, dir, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("judged", func(t *testing.T) { judgeOutputs(t, dir, first) })
	fresh := t.TempDir()
	if err := os.Symlink(filepath.Join(o.Cache, "deb"), filepath.Join(fresh, "deb")); err != nil {
		t.Fatal(err)
	}
	o.Recipe, o.Out, o.Cache = filepath.Join(two, "images/vm.yaml"), t.TempDir(), fresh
	second, _, err := elsewhere(t, func() (*Result, string, error) { return Build(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(digests(first), digests(second)); d != "" {
		t.Errorf("other bytes:\n%s", d)
	}
	for _, f := range first.Files {
		sum, size, err := hashFile(t.Context(), filepath.Join(dir, f.Name))
		if err != nil || sum != f.SHA256 || size != f.Size {
			t.Errorf("%s: %s, %d bytes, %v; release.json says %s, %d", f.Name, sum, size, err, f.SHA256, f.Size)
		}
	}
}

// elsewhere runs f as on another machine: umask, time zone, locale and CPUs.
func elsewhere(t *testing.T, f func() (*Result, string, error)) (*Result, string, error) {
	t.Helper()
	t.Setenv("TZ", "Pacific/Chatham")
	t.Setenv("LC_ALL", "tr_TR.UTF-8")
	zone, mask, cpus := time.Local, syscall.Umask(0o077), runtime.GOMAXPROCS(1)
	time.Local = time.FixedZone("elsewhere", 45900)
	defer func() {
		time.Local = zone
		syscall.Umask(mask)
		runtime.GOMAXPROCS(cpus)
	}()
	return f()
}

// stopAt cancels a build when a phase begins.
type stopAt struct {
	silent
	name   string
	cancel context.CancelFunc
	mu     sync.Mutex
	seen   []string
}

func (s *stopAt) Phase(name string) Phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, name)
	if name == s.name {
		s.cancel()
	}
	return silent{}
}

// leftovers lists what is in a folder.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestBuildStopped(t *testing.T) {
	o := realBuild(t)
	all := &stopAt{}
	o.Report = all
	if _, _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, phase := range all.seen {
		t.Run(phase, func(t *testing.T) {
			o := o
			o.Out = t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.Report = &stopAt{name: phase, cancel: cancel}
			_, _, err := Build(ctx, o)
			left := leftovers(t, o.Out)
			if phase == "commit" && err == nil {
				// Past the last look at Ctrl-C: the whole build is in place.
				if !cmp.Equal(left, []string{"vm"}) {
					t.Errorf("left %v", left)
				}
				return
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

// TestBuildTwiceAtOnce has two builds with one output folder and one cache.
func TestBuildTwiceAtOnce(t *testing.T) {
	o := realBuild(t)
	var wg sync.WaitGroup
	results, errs := make([]*Result, 2), make([]error, 2)
	for i := range results {
		wg.Go(func() { results[i], _, errs[i] = Build(t.Context(), o) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(results[0], results[1]); d != "" {
		t.Error(d)
	}
	if left := leftovers(t, o.Out); !cmp.Equal(left, []string{"vm"}) {
		t.Errorf("left %v", left)
	}
}

func TestBuildFullDisk(t *testing.T) {
	o := realBuild(t)
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=30m"); err != nil {
		t.Skipf("needs to mount a small file system: %v", err)
	}
	defer syscall.Unmount(small, syscall.MNT_DETACH)
	o.Out = small
	_, _, err := Build(t.Context(), o)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("got %v", err)
	}
	if left := leftovers(t, small); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestBuildKeepsWhatIsNoBuild(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "vm", "thesis.txt")
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, []byte("years of work"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _, err := Build(t.Context(), Options{Recipe: "../images/vm.yaml", Out: dir, Cache: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "not overwritten") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

// The table of files in docs/build.md has what a build of images/vm.yaml makes and nothing else.
func TestFilesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/build.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| file | what |\n|---|---|\n")
	if !found {
		t.Fatal("docs/build.md has no table of files")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var said []string
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(row, " | ")
		for i, s := range strings.Split(first, "`") {
			if i%2 == 1 {
				said = append(said, s)
			}
		}
	}
	slices.Sort(said)
	if d := cmp.Diff(Files("vm"), said); d != "" {
		t.Errorf("the table of docs/build.md is not what a build makes (- made, + said):\n%s", d)
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.deb")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string // in the error, "" where there is none
	}{
		"nothing more":       {Options{}, ""},
		"folder and mirror":  {Options{Debs: dir, Mirror: "https://mirror.example/debian/"}, ""},
		"a mirror on disk":   {Options{Mirror: "file://" + dir}, ""},
		"no folder":          {Options{Debs: filepath.Join(dir, "nowhere")}, "--debs"},
		"a file":             {Options{Debs: file}, "is no folder"},
		"a host":             {Options{Mirror: "mirror.example"}, "http://"},
		"another scheme":     {Options{Mirror: "gopher://mirror.example/debian"}, "http://"},
		"no host":            {Options{Mirror: "http:///debian"}, "http://HOST/debian"},
		"a second line":      {Options{Mirror: "http://mirror.example/debian\ndeb http://other.example x main"}, "is no URL"},
		"options of apt":     {Options{Mirror: "[trusted=yes] http://mirror.example/debian"}, "--mirror"},
		"a query":            {Options{Mirror: "http://mirror.example/debian?x=y"}, "base URL"},
		"no folder of files": {Options{Mirror: "file:///nowhere/at/all"}, "there is no folder"},
	} {
		c.o.Out = "out"
		if err := c.o.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Options{}).Check(); err == nil {
		t.Error("no folder for the output was accepted")
	}
}

// TestNoSpaceOfOthers: a full disk is told as one also where another program met it.
func TestNoSpaceOfOthers(t *testing.T) {
	failed := errors.New("exit status 1")
	for said, full := range map[string]bool{
		"link: mapping output file failed: no space left on device": true,
		"mke2fs: No space left on device while writing":             true,
		"undefined: x": false,
	} {
		err := explain(noSpace(failed, said), "out", "cache")
		if got := strings.Contains(err.Error(), "The disk is full"); got != full || !errors.Is(err, failed) {
			t.Errorf("%s: %v", said, err)
		}
	}
}

func TestOutputCommit(t *testing.T) {
	parent := t.TempDir()
	final := filepath.Join(parent, "vm")
	for _, content := range []string{"one", "two"} {
		o, err := newOutput(final)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(o.path("disk.img"), []byte(content), 0o644), o.describe(t.Context(), &Result{}, nil), o.commit()); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(final, "disk.img"))
		if err != nil || string(got) != content {
			t.Errorf("%q, %v", got, err)
		}
	}
	// What a killed build left goes with the next one; one that lives is left alone.
	dead := filepath.Join(parent, tempPrefix+"vm-dead")
	if err := os.MkdirAll(filepath.Join(dead, "x"), 0o500); err != nil {
		t.Fatal(err)
	}
	alive, err := newOutput(final)
	if err != nil {
		t.Fatal(err)
	}
	next, err := newOutput(final)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); err == nil {
		t.Error("a dead build's folder is still there")
	}
	if _, err := os.Stat(alive.dir); err != nil {
		t.Error("a living build's folder was removed")
	}
	if err := errors.Join(alive.discard(), next.discard()); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, parent); !cmp.Equal(left, []string{"vm"}) {
		t.Errorf("left %v", left)
	}
}
