package release

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"kingpost/internal/gpt"
)

// The examples of the UAPI version format specification, in rising order, and what releases of ours look like.
func TestCompareVersions(t *testing.T) {
	order := []string{"~1", "", "ab", "abb", "abc", "0001", "002", "12", "122", "122.9", "123~rc1", "123", "123-a", "123-a.1", "123-a1", "123-a1.1", "123-3", "123-3.1", "123^patch1", "123^1", "123.a-1", "123.1-1", "123a-1", "124"}
	for i, a := range order {
		for j, b := range order {
			got, want := CompareVersions(a, b), 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got != want {
				t.Errorf("%q and %q: %d, want %d", a, b, got, want)
			}
		}
	}
	for _, same := range [][2]string{{"1.0", "1.00"}, {"0", "000"}, {"1_2", "1_2"}} {
		if got := CompareVersions(same[0], same[1]); got != 0 {
			t.Errorf("%q and %q: %d", same[0], same[1], got)
		}
	}
}

func FuzzCompareVersions(f *testing.F) {
	f.Add("1.2~rc1", "1.2")
	f.Add("é", "~")
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a) > 200 || len(b) > 200 {
			return
		}
		if x, y := CompareVersions(a, b), CompareVersions(b, a); x != -y {
			t.Errorf("%q and %q: %d and %d", a, b, x, y)
		}
	})
}

func TestSortEntries(t *testing.T) {
	e := []BootEntry{
		{ID: "rescue", Version: "0", SortKey: SortKey},
		{ID: "0.9.0", Version: "0.9.0", SortKey: SortKey},
		{ID: "0.10.0", Version: "0.10.0", SortKey: SortKey},
		{ID: "0.11.0", Version: "0.11.0", SortKey: SortKey, Counter: &Counter{0, 3}},
		{ID: "0.10.1", Version: "0.10.1", SortKey: SortKey, Counter: &Counter{2, 1}},
	}
	SortEntries(e)
	var got []string
	for _, x := range e {
		got = append(got, x.ID)
	}
	if want := []string{"0.10.1", "0.10.0", "0.9.0", "rescue", "0.11.0"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNewGUIDs(t *testing.T) {
	p, err := NewPlan(DiskSpec{Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	if err := NewGUIDs(&p.Table, bytes.NewReader(bytes.Repeat([]byte{0xff}, 16*3))); err == nil {
		t.Error("too little chance was enough")
	}
	random := make([]byte, 16*5)
	for i := range random {
		random[i] = byte(i)
	}
	if err := NewGUIDs(&p.Table, bytes.NewReader(random)); err != nil {
		t.Fatal(err)
	}
	if IsDefaultGUIDs(&p.Table) || !IsKingpost(&p.Table) {
		t.Error("it still has the image's GUIDs, or is no disk of ours any more")
	}
	seen := map[gpt.GUID]bool{p.DiskGUID: true}
	for _, q := range p.Partitions {
		if seen[q.GUID] || q.GUID.String()[14] != '4' || !strings.ContainsRune("89ab", rune(q.GUID.String()[19])) {
			t.Errorf("%s has %s", q.Name, q.GUID)
		}
		seen[q.GUID] = true
	}
}

func TestFindBootRefusesWhatIsNone(t *testing.T) {
	f := newFile(t, 1<<20)
	if _, err := FindBoot(t.Context(), f, 1<<20, DepthWhole); !errors.Is(err, ErrNotBootable) {
		t.Errorf("zeros: %v", err)
	}
	// The disk of this package's tests has a UKI that is none.
	d, p, _ := disk(t, DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 32 << 20})
	if _, err := FindBoot(t.Context(), d, p.Size, DepthWhole); err == nil || errors.Is(err, ErrNotBootable) {
		t.Errorf("a UKI that is none: %v", err)
	}
}
