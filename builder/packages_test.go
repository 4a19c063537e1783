package builder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeDeb makes a small package with a program of Debian's form in it.
func fakeDeb(t *testing.T, dir string) LockedDeb {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not here")
	}
	tree := t.TempDir()
	for name, text := range map[string]string{
		"DEBIAN/control":            "Package: thing\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a thing\n",
		"usr/share/doc/thing/about": "a thing\n",
	} {
		p := filepath.Join(tree, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	d := LockedDeb{Package: "thing", Version: "1:2.0-1", Arch: "all", For: forProgram}
	name := filepath.Join(dir, d.FileName())
	if out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", tree, name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var err error
	if d.SHA256, d.Size, err = hashFile(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return d
}

func testPackages(t *testing.T, folder string) *packages {
	t.Helper()
	cache, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &packages{cache: cache, folder: folder, relock: "kingpost build --update-lock x.yaml", apt: func() (*apt, error) {
		return nil, errors.New("apt was asked")
	}}
}

func TestPackageFromFolder(t *testing.T) {
	dir := t.TempDir()
	d := fakeDeb(t, dir)
	p := testPackages(t, dir)
	for range 2 {
		if err := p.fetch(t.Context(), []LockedDeb{d}, silent{}); err != nil {
			t.Fatal(err)
		}
		tree, err := p.tree(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := inTree(tree, "usr/share/doc/*/about"); err != nil {
			t.Error(err)
		}
		p.folder = "" // the second time it is in the cache
	}
}

func TestPackageRefused(t *testing.T) {
	dir := t.TempDir()
	d := fakeDeb(t, dir)

	t.Run("other bytes", func(t *testing.T) {
		other := d
		other.SHA256 = strings.Repeat("0", 64)
		err := testPackages(t, dir).fetch(t.Context(), []LockedDeb{other}, silent{})
		wantWords(t, err, "thing 1:2.0-1", other.SHA256, d.SHA256, "--update-lock")
	})
	t.Run("nowhere", func(t *testing.T) {
		err := testPackages(t, t.TempDir()).fetch(t.Context(), []LockedDeb{d}, silent{})
		wantWords(t, err, "thing 1:2.0-1", "apt was asked")
	})
	t.Run("gone from the mirror", func(t *testing.T) {
		bin := t.TempDir()
		script := "#!/bin/sh\ncase \"$*\" in *download*) echo 'E: Version not found' >&2; exit 100;; esac\n"
		if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":/usr/bin:/bin")
		p := testPackages(t, "")
		p.apt = func() (*apt, error) { return &apt{dir: t.TempDir(), suite: "trixie"}, nil }
		err := p.fetch(t.Context(), []LockedDeb{d}, silent{})
		wantWords(t, err, "thing 1:2.0-1", "Version not found", d.FileName(), "--debs", "--update-lock")
	})
	t.Run("no space", func(t *testing.T) {
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\necho 'E: 404 Not Found' >&2; exit 100\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":/usr/bin:/bin")
		p := testPackages(t, "")
		p.apt = func() (*apt, error) { return &apt{dir: t.TempDir(), suite: "trixie", little: 1 << 62}, nil }
		err := p.fetch(t.Context(), []LockedDeb{d}, silent{})
		wantWords(t, err, "little space left", "KINGPOST_CACHE", "404 Not Found")
		if before, _, _ := strings.Cut(err.Error(), "404"); !strings.Contains(before, "little space left") || strings.Contains(err.Error(), "mirror drops") {
			t.Errorf("the disk is not what it says first and alone: %v", err)
		}
	})
	t.Run("damaged in the cache", func(t *testing.T) {
		p := testPackages(t, dir)
		if err := p.fetch(t.Context(), []LockedDeb{d}, silent{}); err != nil {
			t.Fatal(err)
		}
		name := p.cache.path("deb", d.SHA256, "package.deb")
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-5] ^= 1
		if err := os.WriteFile(name, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = p.tree(t.Context(), d)
		wantWords(t, err, "thing 1:2.0-1", "run the build again")
		if p.cache.has("tree", d.SHA256) || p.cache.has("deb", d.SHA256) {
			t.Error("it is still in the cache")
		}
	})
}

// A machine whose sources have no security updates gets what is locked from there all the same, from beside the archive.
func TestPackageOfSecurity(t *testing.T) {
	dir := t.TempDir()
	d := fakeDeb(t, dir)
	release, err := osCodename(os.DirFS("/etc"))
	if err != nil {
		t.Skip(err)
	}
	if _, err := suiteSources(os.DirFS("/etc"), release); err != nil {
		t.Skip(err)
	}
	for name, update := range map[string]string{"answers": "exit 0", "does not answer": "echo 'E: no route' >&2; exit 100"} {
		t.Run(name, func(t *testing.T) {
			bin, state := t.TempDir(), t.TempDir()
			if err := os.MkdirAll(filepath.Join(state, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			sources := filepath.Join(state, "etc/sources.list")
			script := "#!/bin/sh\nif grep -q -e -security " + sources + " 2>/dev/null; then\n" +
				"case \"$*\" in *update*) " + update + ";; *) exec cp " + filepath.Join(dir, d.FileName()) + " .;; esac\nfi\n" +
				"case \"$*\" in *update*) exit 0;; esac\necho 'E: Unable to locate package' >&2; exit 100\n"
			if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", bin+":/usr/bin:/bin")
			p := testPackages(t, "")
			p.apt = func() (*apt, error) {
				return &apt{dir: state, conf: filepath.Join(state, "apt.conf"), suite: release, noSecurity: true}, nil
			}
			err := p.fetch(t.Context(), []LockedDeb{d}, silent{})
			if name == "answers" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantWords(t, err, "Unable to locate package", "-security", "no route", d.FileName(), "--debs")
		})
	}
}

// Lists are made anew when they are old, and when they were made with other sources.
func TestListsOfOtherSources(t *testing.T) {
	bin, state := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\necho x >>"+filepath.Join(state, "asked")+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	if err := os.MkdirAll(filepath.Join(state, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		sources string
		age     time.Duration
		asked   int
	}{{"deb a", time.Hour, 1}, {"deb a", time.Hour, 1}, {"deb b", time.Hour, 2}, {"deb b", time.Hour, 2}, {"deb b", 0, 3}} {
		if err := os.WriteFile(filepath.Join(state, "etc/sources.list"), []byte(step.sources), 0o644); err != nil {
			t.Fatal(err)
		}
		a := &apt{dir: state, suite: "trixie"}
		if err := a.update(t.Context(), step.age); err != nil {
			t.Fatal(err)
		}
		if asked, _ := os.ReadFile(filepath.Join(state, "asked")); strings.Count(string(asked), "x") != step.asked {
			t.Errorf("step %d: apt was asked %q", i, asked)
		}
	}
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("want %q in: %v", w, err)
		}
	}
}

func TestAbsentModule(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module kingpost\n\ngo 1.26\n\nrequire example.org/absent v1.0.0\n",
		"go.sum":  "example.org/absent v1.0.0 h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\nexample.org/absent v1.0.0/go.mod h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n",
		"main.go": "package main\n\nimport _ \"example.org/absent\"\n\nfunc main() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOPROXY", "off")
	cache, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tool, err := openGo(t.Context(), cache, "amd64", dir, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = tool.listSources(t.Context(), dir, []string{"."})
	wantWords(t, err, "example.org/absent")
}
