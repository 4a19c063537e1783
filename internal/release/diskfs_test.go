package release

import (
	"bytes"
	"io"
	"testing"

	"github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// TestDiskIsReadByDiskfs has a library that knows nothing of ours read the table and every file of the ESP.
func TestDiskIsReadByDiskfs(t *testing.T) {
	f, p, _ := disk(t, DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 32 << 20})
	d, err := diskfs.Open(f.Name(), diskfs.WithOpenMode(diskfs.ReadOnly))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	table, err := d.GetPartitionTable()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*gpt.Partition{}
	for _, q := range table.(*gpt.Table).Partitions {
		if q.Type != gpt.Unused {
			found[q.Name] = q
		}
	}
	if len(found) != len(p.Partitions) {
		t.Errorf("%d partitions were read, %d were planned", len(found), len(p.Partitions))
	}
	for _, want := range p.Partitions {
		got := found[want.Name]
		if got == nil || got.GetStart() != want.Start || got.GetSize() != want.Size {
			t.Errorf("%s was planned at %d with %d bytes, read was %+v", want.Name, want.Start, want.Size, got)
		}
	}
	esp, err := d.GetFilesystem(1)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ESPFiles(espSpec())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range files {
		r, err := esp.OpenFile("/"+want.Path, 0)
		if err != nil {
			t.Errorf("%s: %v", want.Path, err)
			continue
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("%s: %d bytes were read, %d were written: %v", want.Path, len(got), len(want.Data), err)
		}
	}
}
