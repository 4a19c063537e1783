package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"kingpost/installer/flash/madeup"
	"kingpost/internal/blockdev"
)

// A machine with a disk of ours, one that fails and one that is not read in time, as the kernel shows them.
func TestLook(t *testing.T) {
	image, err := madeup.Make("0.2.0", 40<<20)
	if err != nil {
		t.Fatal(err)
	}
	sys := fstest.MapFS{}
	file := func(name, text string) { sys[name] = &fstest.MapFile{Data: []byte(text)} }
	for _, d := range []string{"sda", "sdb", "sdc", "sdd"} {
		file("block/"+d+"/size", fmt.Sprint(image.Disk.Size()/512))
		file("block/"+d+"/queue/logical_block_size", "512")
	}
	file("block/sdd/size", "0")
	inv := blockdev.Inventory{Sys: sys, Proc: fstest.MapFS{"self/mountinfo": {}}, Dev: "/dev"}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	found, err := Look(ctx, inv, func(path string) (io.ReaderAt, io.Closer, error) {
		switch path {
		case "/dev/sda":
			return image.Disk, io.NopCloser(nil), nil
		case "/dev/sdb":
			return failing{}, io.NopCloser(nil), nil
		case "/dev/sdc":
			cancel()
			return image.Disk, io.NopCloser(nil), nil
		}
		return nil, nil, errors.New("this one is not to be opened")
	})
	if err != nil || len(found) != 4 {
		t.Fatalf("%d disks, %v", len(found), err)
	}
	if a := found[0]; a.Unread != "" || a.Kingpost == nil || a.Kingpost.Starts != "0.2.0" || a.Kingpost.DiskGUID == "" || len(a.Contents.Partitions) != 4 {
		t.Errorf("%+v, %+v", a.Kingpost, a)
	}
	if b := found[1]; !strings.Contains(b.Unread, "input/output error") {
		t.Errorf("%+v", b)
	}
	if c := found[2]; !strings.Contains(c.Unread, "took longer") || c.Kingpost != nil {
		t.Errorf("%+v", c)
	}
	if d := found[3]; d.Size != 0 || d.Unread != "" {
		t.Errorf("%+v", d)
	}
	if _, err := Look(ctx, blockdev.Inventory{Sys: sys, Proc: fstest.MapFS{}, Dev: "/dev"}, nil); err == nil {
		t.Error("without mountinfo nobody can tell what is mounted, and nothing said so")
	}
}

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }
