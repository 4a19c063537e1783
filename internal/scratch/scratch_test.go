package scratch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

const holdsEnv = "SCRATCH_TEST_HOLDS"

// TestMain is also the program that makes a folder and a file and is killed.
func TestMain(m *testing.M) {
	parent := os.Getenv(holdsEnv)
	if parent == "" {
		os.Exit(m.Run())
	}
	d, err := Dir(parent, "thing-")
	if err == nil {
		err = os.WriteFile(filepath.Join(d.Path, "x"), nil, 0o644)
	}
	if err == nil {
		_, err = File(parent, "paper-")
	}
	if err != nil {
		os.Stdout.WriteString(err.Error())
	}
	os.Stdout.WriteString("held\n")
	select {}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range found {
		out = append(out, n.Name())
	}
	return out
}

func TestKilledHolder(t *testing.T) {
	parent := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), holdsEnv+"="+parent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 5)
	if _, err := out.Read(said); err != nil || string(said) != "held\n" {
		t.Fatalf("%q, %v", said, err)
	}
	Sweep(parent, "thing-")
	Sweep(parent, "paper-")
	if n := names(t, parent); len(n) != 2 {
		t.Errorf("of a program that lives: left %q", n)
	}
	cmd.Process.Kill()
	cmd.Wait()

	d, err := Dir(parent, "thing-")
	if err != nil {
		t.Fatal(err)
	}
	f, err := File(parent, "paper-")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Base(d.Path), filepath.Base(f.Path)}
	slices.Sort(want)
	if n := names(t, parent); !slices.Equal(n, want) {
		t.Errorf("after a program that was killed: %q, want %q", n, want)
	}
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
	if err := f.Remove(); err != nil {
		t.Error(err)
	}
	if n := names(t, parent); len(n) != 0 {
		t.Errorf("left %q", n)
	}
}

func TestSweepLeavesAlone(t *testing.T) {
	parent, elsewhere := t.TempDir(), t.TempDir()
	kept := filepath.Join(elsewhere, "kept")
	if err := os.WriteFile(kept, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(parent, "thing-link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(parent, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := []string{"other", "thing-link"}
	if os.Geteuid() == 0 {
		foreign := filepath.Join(parent, "thing-foreign")
		if err := os.Mkdir(foreign, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		want = append([]string{"other"}, "thing-foreign", "thing-link")
	}
	if err := os.MkdirAll(filepath.Join(parent, "thing-orphan", "in"), 0o500); err == nil {
		err = os.Chmod(filepath.Join(parent, "thing-orphan"), 0o500)
		if err != nil {
			t.Fatal(err)
		}
	}
	Sweep(parent, "thing-")
	if n := names(t, parent); !slices.Equal(n, want) {
		t.Errorf("left %q, want %q", n, want)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error("a link was followed")
	}
}

// TestTogether has many make and sweep at once: nobody loses what it holds.
func TestTogether(t *testing.T) {
	parent := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				d, err := Dir(parent, "thing-")
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(d.Path, "x"), nil, 0o644); err != nil {
					t.Error(err)
				}
				Sweep(parent, "thing-")
				if _, err := os.Stat(filepath.Join(d.Path, "x")); err != nil {
					t.Error(err)
				}
				if err := d.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	Sweep(parent, "thing-")
	if n := names(t, parent); len(n) != 0 {
		t.Errorf("left %q", n)
	}
}
