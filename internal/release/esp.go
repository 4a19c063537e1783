package release

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
)

// Paths on the ESP, relative to its root.
const (
	ESPNodeConfig = "node.yaml"
	ESPLoaderConf = "loader/loader.conf"
	ESPEntries    = "loader/entries"
	ESPUKIs       = "EFI/kingpost"
)

// loaderConf starts the best entry at once; nobody may edit a command line or boot anything that is no entry of ours.
const loaderConf = "timeout 0\neditor no\nauto-entries no\nauto-firmware no\n"

// ESPSpec is what goes onto a fresh image's ESP.
type ESPSpec struct {
	Arch        string
	Info        mesh.ReleaseInfo
	Bootloader  []byte // systemd-boot
	UKI, Rescue []byte
	NodeConfig  []byte // node.yaml; nil for none
}

// ESPFiles lays out the ESP of a fresh image: boot loader, loader.conf, the release's entry and the rescue entry,
// their UKIs under their hashes, node.yaml.
func ESPFiles(s ESPSpec) ([]fat32.File, error) {
	a, err := lookupArch(s.Arch)
	if err != nil {
		return nil, fmt.Errorf("lay out ESP: %w", err)
	}
	for what, b := range map[string][]byte{"boot loader": s.Bootloader, "UKI": s.UKI, "rescue UKI": s.Rescue} {
		if len(b) == 0 {
			return nil, fmt.Errorf("lay out ESP: the %s is missing", what)
		}
	}
	files := []fat32.File{
		{Path: "EFI/BOOT/" + a.loader, Data: s.Bootloader},
		{Path: "EFI/systemd/" + a.boot, Data: s.Bootloader},
		{Path: ESPLoaderConf, Data: []byte(loaderConf)},
	}
	entries := []struct {
		entry BootEntry
		uki   []byte
	}{
		{BootEntry{ID: s.Info.Version, Title: "Kingpost " + s.Info.Name + " " + s.Info.Version, Version: s.Info.Version}, s.UKI},
		{BootEntry{ID: RescueID, Title: "Kingpost rescue", Version: RescueVersion}, s.Rescue},
	}
	if s.Info.Version == RescueID {
		return nil, fmt.Errorf("lay out ESP: a release cannot have the version %q", RescueID)
	}
	written := map[string]bool{}
	for _, e := range entries {
		e.entry.SortKey, e.entry.EFI = SortKey, "/"+UKIPath(e.uki)
		if err := e.entry.Check(); err != nil {
			return nil, fmt.Errorf("lay out ESP: %w", err)
		}
		files = append(files, fat32.File{Path: ESPEntries + "/" + e.entry.FileName(), Data: e.entry.Render()})
		if p := UKIPath(e.uki); !written[p] {
			written[p] = true
			files = append(files, fat32.File{Path: p, Data: e.uki})
		}
	}
	if s.NodeConfig != nil {
		if _, err := ParseNodeConfig(s.NodeConfig); err != nil {
			return nil, fmt.Errorf("lay out ESP: %w", err)
		}
		files = append(files, fat32.File{Path: ESPNodeConfig, Data: s.NodeConfig})
	}
	return files, nil
}

// UKIPath is where a UKI lives on the ESP, relative to its root: by the SHA-256 of its bytes.
func UKIPath(uki []byte) string { return fmt.Sprintf("%s/%x.efi", ESPUKIs, sha256.Sum256(uki)) }

// part is a partition of a disk.
type part struct {
	d           Disk
	start, size int64
}

func (p part) ReadAt(b []byte, off int64) (int, error) {
	return io.NewSectionReader(p.d, p.start, p.size).ReadAt(b, off)
}

func (p part) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || off > p.size || int64(len(b)) > p.size-off {
		return 0, fmt.Errorf("write of %d bytes at %d is outside the partition of %d bytes", len(b), off, p.size)
	}
	return p.d.WriteAt(b, p.start+off)
}

// OpenESP opens the ESP of a disk that nobody has mounted. It is only written to by the methods that say so, so a disk
// that was opened for reading will do for reading.
func OpenESP(d Disk, t *gpt.Table) (*fat32.FS, error) {
	p, ok := find(t, PartESP)
	if !ok {
		return nil, fmt.Errorf("open ESP: the disk has no partition %s", PartESP)
	}
	f, err := fat32.Open(part{d, p.Start, p.Size})
	if err != nil {
		return nil, fmt.Errorf("open ESP: %w", err)
	}
	return f, nil
}

func openESP(d Disk, size int64) (*fat32.FS, error) {
	t, err := ReadGPT(d, size, 0)
	if err != nil {
		return nil, err
	}
	return OpenESP(d, t)
}

// WriteNodeConfig checks data as node.yaml and writes it to the ESP of a disk image of size bytes. nil removes it.
func WriteNodeConfig(d Disk, size int64, data []byte, t time.Time) error {
	if data != nil {
		if _, err := ParseNodeConfig(data); err != nil {
			return err
		}
	}
	f, err := openESP(d, size)
	switch {
	case err != nil:
	case data != nil:
		err = f.WriteFile(ESPNodeConfig, data, t)
	default:
		if err = f.Remove(ESPNodeConfig); errors.Is(err, fat32.ErrNotFound) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("write node.yaml: %w", err)
	}
	return nil
}

// ReadNodeConfig returns node.yaml from the ESP of a disk image of size bytes; fat32.ErrNotFound where there is none.
func ReadNodeConfig(r io.ReaderAt, size int64) ([]byte, error) {
	f, err := openESP(fat32.ReadOnly(r), size)
	if err == nil {
		var b []byte
		if b, err = f.ReadFile(ESPNodeConfig, mesh.MaxNodeConfig); err == nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("read node.yaml: %w", err)
}
