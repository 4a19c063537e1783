package release

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/internal/gpt"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	p := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(p, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s has changed (go test -update writes it anew); it is now\n%s", p, got)
	}
}

func TestPlans(t *testing.T) {
	for name, s := range map[string]DiskSpec{
		"plan-amd64":       {Arch: "amd64"},
		"plan-arm64":       {Arch: "arm64"},
		"plan-amd64-4kn":   {Arch: "amd64", SectorSize: 4096},
		"plan-amd64-small": {Arch: "amd64", ESPSize: 64 << 20, RootSize: 256 << 20, DataSize: 128 << 20, Seed: "one disk"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", p.String())
			if IsDefaultGUIDs(&p.Table) != (s.Seed == "") {
				t.Error("IsDefaultGUIDs is wrong")
			}
			if !IsKingpost(&p.Table) || len(Slots(&p.Table)) != 2 {
				t.Error("the plan's own table is not recognised")
			}
		})
	}
}

func TestNewPlanRefuses(t *testing.T) {
	for name, s := range map[string]DiskSpec{
		"no architecture":    {},
		"other architecture": {Arch: "riscv64"},
		"sector size":        {Arch: "amd64", SectorSize: 1024},
		"half a MiB":         {Arch: "amd64", RootSize: 1<<20 + 512},
		"negative":           {Arch: "amd64", DataSize: -1 << 20},
		"too large":          {Arch: "amd64", DataSize: 9 << 40},
		"small ESP":          {Arch: "amd64", ESPSize: 32 << 20},
		"small ESP on 4Kn":   {Arch: "amd64", ESPSize: 128 << 20, SectorSize: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewPlan(s); err == nil || !strings.Contains(err.Error(), "plan disk") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestGrowLastRefusesOtherDisks(t *testing.T) {
	p, err := NewPlan(DiskSpec{Arch: "amd64", ESPSize: 40 << 20, RootSize: 1 << 20, DataSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*gpt.Table){
		"no data partition":     func(t *gpt.Table) { t.Partitions[3].Name = "other" },
		"no slot":               func(t *gpt.Table) { t.Partitions[1].Name = "other" },
		"data is not the last":  func(t *gpt.Table) { t.Partitions[2].Name, t.Partitions[3].Name = PartData, PartRootB },
		"something lies behind": func(t *gpt.Table) { t.Partitions[0].Name, t.Partitions[3].Name = PartData, PartESP },
	} {
		t.Run(name, func(t *testing.T) {
			q := p
			q.Partitions = append([]gpt.Partition(nil), p.Partitions...)
			edit(&q.Table)
			f := newFile(t, q.Size)
			if err := gpt.Write(f, &q.Table); err != nil {
				t.Fatal(err)
			}
			if err := f.Truncate(q.Size + 64<<20); err != nil {
				t.Fatal(err)
			}
			if _, err := GrowLast(f, q.Size+64<<20, 0, nil); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func newFile(t testing.TB, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}
