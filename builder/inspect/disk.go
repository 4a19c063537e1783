package inspect

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// DiskReport is what is on a disk of ours.
type DiskReport struct {
	GUID       string      `json:"guid"`
	SectorSize int         `json:"sectorSize"`
	Partitions []Partition `json:"partitions"`
	ESP        []ESPFile   `json:"esp"`
	Entries    []Entry     `json:"entries"`
	// NodeConfig is node.yaml as it stands; empty where there is none.
	NodeConfig string        `json:"nodeConfig,omitempty"`
	Roots      []*RootReport `json:"roots"`
	Problems   []string      `json:"problems,omitempty"`
}

// Partition is one partition.
type Partition struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	GUID   string `json:"guid"`
	Start  int64  `json:"start"` // bytes
	Size   int64  `json:"size"`  // bytes
}

// ESPFile is one file on the ESP.
type ESPFile struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// Entry is a boot entry and the UKI that it starts.
type Entry struct {
	File    string     `json:"file"`
	Title   string     `json:"title,omitempty"`
	Version string     `json:"version,omitempty"`
	EFI     string     `json:"efi"`
	UKI     *UKIReport `json:"uki,omitempty"`
}

// readDisk is a disk that refuses writes.
type readDisk struct{ io.ReaderAt }

func (readDisk) WriteAt([]byte, int64) (int, error) { return 0, errors.New("opened for reading") }

const (
	maxESPFiles = 10_000
	maxEntry    = 64 << 10 // bytes
)

// Disk inspects a disk of size bytes.
func Disk(ctx context.Context, r io.ReaderAt, size int64) (*DiskReport, error) {
	t, err := release.ReadGPT(r, size, 0)
	if err != nil {
		return nil, err
	}
	d := &DiskReport{GUID: t.DiskGUID.String(), SectorSize: t.SectorSize}
	if t.FromBackup {
		d.Problems = append(d.Problems, "the primary partition table is damaged; the backup at the disk's end was read")
	}
	for _, p := range t.Partitions {
		d.Partitions = append(d.Partitions, Partition{p.Number, p.Name, p.Type.String(), p.GUID.String(), p.Start, p.Size})
	}
	if release.IsDataDisk(t) {
		return d, nil
	}
	if !release.IsKingpost(t) && !release.IsMedium(t) {
		d.Problems = append(d.Problems, "this is no disk of Kingpost: it has not the four partitions")
		return d, nil
	}
	esp, err := release.OpenESP(readDisk{r}, t)
	if err != nil {
		d.Problems = append(d.Problems, fmt.Sprintf("ESP: %v", err))
		return d, nil
	}
	if err := d.readESP(esp); err != nil {
		d.Problems = append(d.Problems, fmt.Sprintf("ESP: %v", err))
	}
	return d, d.readRoots(ctx, r, t)
}

func (d *DiskReport) readESP(esp *fat32.FS) error {
	if err := d.list(esp, ""); err != nil {
		return err
	}
	for _, f := range d.ESP {
		if f.Path == release.ESPNodeConfig {
			raw, err := esp.ReadFile(f.Path, maxEntry)
			if err != nil {
				return err
			}
			d.NodeConfig = string(raw)
		}
		if path.Dir(f.Path) != release.ESPEntries || !strings.HasSuffix(f.Path, ".conf") {
			continue
		}
		raw, err := esp.ReadFile(f.Path, maxEntry)
		if err != nil {
			return err
		}
		e, err := release.ParseBootEntry(path.Base(f.Path), raw)
		if err != nil {
			d.Problems = append(d.Problems, fmt.Sprintf("boot entry %s: %v", f.Path, err))
			continue
		}
		entry := Entry{File: path.Base(f.Path), Title: e.Title, Version: e.Version, EFI: e.EFI}
		img, err := esp.OpenFile(strings.TrimPrefix(e.EFI, "/"))
		if err == nil {
			entry.UKI, err = UKI(img, img.Size())
		}
		if err != nil {
			d.Problems = append(d.Problems, fmt.Sprintf("boot entry %s: %s: %v", f.Path, e.EFI, err))
		}
		d.Entries = append(d.Entries, entry)
	}
	return nil
}

func (d *DiskReport) list(esp *fat32.FS, dir string) error {
	infos, err := esp.List(dir)
	if err != nil {
		return err
	}
	for _, i := range infos {
		p := path.Join(dir, i.Name)
		if i.Dir {
			if strings.Count(p, "/") > 8 {
				return fmt.Errorf("%s: folders lie too deep", p)
			}
			if err := d.list(esp, p); err != nil {
				return err
			}
			continue
		}
		if d.ESP = append(d.ESP, ESPFile{p, i.Size}); len(d.ESP) > maxESPFiles {
			return fmt.Errorf("more than %d files", maxESPFiles)
		}
	}
	return nil
}

// readRoots looks for the root of every entry that pins one.
func (d *DiskReport) readRoots(ctx context.Context, r io.ReaderAt, t *gpt.Table) error {
	seen := map[string]bool{}
	for _, e := range d.Entries {
		if e.UKI == nil || e.UKI.RootHash == "" || seen[e.UKI.RootHash] {
			continue
		}
		seen[e.UKI.RootHash] = true
		hash, err := hex.DecodeString(e.UKI.RootHash)
		if err != nil {
			return err
		}
		var reasons []string
		found := false
		for _, slot := range release.FindRoots(r, t, hash, e.UKI.HashOffset) {
			if slot.Err != nil {
				reasons = append(reasons, fmt.Sprintf("slot %s: %v", slot.Letter, slot.Err))
				continue
			}
			found = true
			root, err := Root(ctx, io.NewSectionReader(r, slot.Start, slot.Size), e.UKI.RootHash, e.UKI.HashOffset)
			if err != nil {
				if ctx.Err() != nil {
					return err
				}
				root = &RootReport{Problem: err.Error()}
			}
			root.Slot = slot.Letter
			if root.Problem != "" {
				root.Problem = fmt.Sprintf("slot %s: %s", slot.Letter, root.Problem)
			}
			d.Roots = append(d.Roots, root)
		}
		if !found {
			d.Problems = append(d.Problems, fmt.Sprintf("entry %s: no slot has its root %.16s...: %s", e.File, e.UKI.RootHash, strings.Join(reasons, "; ")))
		}
	}
	return nil
}
