package release

import (
	"errors"
	"io"
	"time"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
)

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
func ESPFiles(s ESPSpec) ([]fat32.File, error) { return nil, errors.ErrUnsupported }

// UKIPath is where a UKI lives on the ESP, relative to its root: by the SHA-256 of its bytes.
func UKIPath(uki []byte) string { return "" }

// OpenESP opens the ESP of a disk. The disk is only written to by methods that say so.
func OpenESP(d Disk, t *gpt.Table) (*fat32.FS, error) { return nil, errors.ErrUnsupported }

// WriteNodeConfig checks data as node.yaml and writes it to the ESP of a disk image of size bytes. nil removes it.
func WriteNodeConfig(d Disk, size int64, data []byte, t time.Time) error {
	return errors.ErrUnsupported
}

// ReadNodeConfig returns node.yaml from the ESP of a disk image; fat32.ErrNotFound where there is none.
func ReadNodeConfig(r io.ReaderAt, size int64) ([]byte, error) { return nil, errors.ErrUnsupported }
