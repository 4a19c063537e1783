package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kingpost/internal/gpt"
)

func TestMediumPlans(t *testing.T) {
	s := DiskSpec{Arch: "amd64", ESPSize: 40 << 20}
	medium, err := NewMediumPlan(s, 61<<20+1)
	if err != nil {
		t.Fatal(err)
	}
	data, err := NewDataPlan(s)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "plan-medium.txt", medium.String())
	golden(t, "plan-data.txt", data.String())
	if !IsMedium(&medium.Table) || IsDataDisk(&medium.Table) || IsKingpost(&medium.Table) {
		t.Errorf("the medium is taken for something else: %s", medium)
	}
	if IsMedium(&data.Table) || !IsDataDisk(&data.Table) || IsKingpost(&data.Table) {
		t.Errorf("the data disk is taken for something else: %s", data)
	}
}

// TestMediumGrows writes both to a larger disk, where the data partition gets the room.
func TestMediumGrows(t *testing.T) {
	s := DiskSpec{Arch: "amd64", ESPSize: 40 << 20}
	medium, err1 := NewMediumPlan(s, 1<<20)
	data, err2 := NewDataPlan(s)
	for name, plan := range map[string]Plan{"medium": medium, "data disk": data} {
		t.Run(name, func(t *testing.T) {
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			const size = 1 << 30
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
			c := Contents{Time: time.Unix(1e9, 0), Data: &Content{strings.NewReader("data"), 4}}
			if err := WriteDisk(t.Context(), f, plan, c, nil); err != nil {
				t.Fatal(err)
			}
			grown, err := GrowLast(f, size, 512, nil)
			if err != nil {
				t.Fatal(err)
			}
			last := grown.Partitions[len(grown.Partitions)-1]
			if last.Name != PartData || last.Start+last.Size != size-gpt.Align {
				t.Errorf("it grew to %+v", last)
			}
		})
	}
}

// TestNoPlaceForContents has contents for partitions that a plan does not have.
func TestNoPlaceForContents(t *testing.T) {
	data, err := NewDataPlan(DiskSpec{Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	err = WriteDisk(t.Context(), nil, data, Contents{RootA: &Content{strings.NewReader("x"), 1}}, nil)
	if err == nil || !strings.Contains(err.Error(), "no partition "+PartRootA) {
		t.Errorf("got %v", err)
	}
	err = WriteDisk(t.Context(), nil, data, Contents{Data: &Content{strings.NewReader("x"), 65 << 20}}, nil)
	if err == nil || !strings.Contains(err.Error(), "do not fit") {
		t.Errorf("got %v", err)
	}
}
