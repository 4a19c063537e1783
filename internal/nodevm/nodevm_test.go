package nodevm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

var date = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// image writes a disk image whose ESP holds what no machine could start, which is enough here.
func image(t *testing.T) string {
	t.Helper()
	files, err := release.ESPFiles(release.ESPSpec{
		Arch: "amd64", Info: mesh.ReleaseInfo{Name: "test", Version: "1.0.0", Date: "2026-12-01", Architecture: "amd64"},
		Bootloader: []byte("loader"), UKI: []byte("uki"), Rescue: []byte("rescue"),
	})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := release.NewPlan(release.DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(plan.Size); err != nil {
		t.Fatal(err)
	}
	if err := release.WriteDisk(t.Context(), f, plan, release.Contents{ESP: files, Time: date}, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDisk(t *testing.T) {
	img := image(t)
	disk := filepath.Join(t.TempDir(), "disk.img")
	const config = "hostname: alpha\n"
	if err := Disk(t.Context(), disk, img, 1<<30, []byte(config), date); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() != 1<<30 {
		t.Errorf("size %d, %v", st.Size(), err)
	}
	if got, err := release.ReadNodeConfig(f, st.Size()); err != nil || string(got) != config {
		t.Errorf("node.yaml is %q, %v", got, err)
	}
	b, err := os.ReadFile(img)
	if err != nil || strings.Contains(string(b), config) {
		t.Errorf("the image itself was written to (%v)", err)
	}
}

func TestDiskRefusesAndLeavesNothing(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := Disk(t.Context(), disk, image(t), 0, []byte("hostnam: alpha\n"), date); err == nil || !strings.Contains(err.Error(), "node.yaml") {
		t.Errorf("a wrong node.yaml: %v", err)
	}
	if _, err := os.Stat(disk); err == nil {
		t.Error("a disk is left that nobody configured")
	}
}

func TestUKI(t *testing.T) {
	f, err := os.Open(image(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := UKI(f); err != nil || string(b) != "uki" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Direct(t.TempDir(), f.Name()); err == nil {
		t.Error("kernel and initrd were taken out of what is no UKI")
	}
}

func TestIdentityLine(t *testing.T) {
	const line = "\r\nkingpost: node kp-ac1a80 key SHA256:eDnT3IYq2/T9tfG3oRUkejU3Ajsoapwl70HzWLw2Dj4\r\n"
	m := identity.FindStringSubmatch(line)
	if m == nil || m[1] != "kp-ac1a80" || m[2] != "SHA256:eDnT3IYq2/T9tfG3oRUkejU3Ajsoapwl70HzWLw2Dj4" {
		t.Errorf("%q", m)
	}
	if identity.MatchString("kingpost: node a key SHA256:short") {
		t.Error("a line that is cut off counts")
	}
}
