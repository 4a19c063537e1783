package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
	"kingpost/internal/uki"
	"kingpost/internal/verity"
)

// Medium is what a node installs from: the disk that it booted from, of which only the release that runs is taken, and its
// node.yaml.
type Medium struct {
	Arch     string
	RootHash string // hex
	Release  string // version of the entry
	DiskGUID string

	root     io.ReaderAt
	rootSize int64 // bytes, hash tree included
	esp      *fat32.FS
	files    []string // of the ESP, that go along
	entries  []release.BootEntry
	config   []byte // node.yaml; nil for none

	data     func() (io.ReadCloser, error)
	dataSize int64 // bytes
}

// maxProgram bounds a program on the ESP, in bytes.
const maxProgram = 256 << 20

// ReadMedium finds on the booted disk what an installation takes from it, and checks what can be checked without reading
// all of it: that there is an entry whose UKI is whole and pins rootHash, and a slot with that root. data opens the empty
// data partition of the release (mesh.PathDataImage).
func ReadMedium(disk io.ReaderAt, size int64, arch, rootHash string, data func() (io.ReadCloser, error)) (*Medium, error) {
	m := &Medium{Arch: arch, RootHash: rootHash, data: data}
	t, err := release.ReadGPT(disk, size, 0)
	if err != nil {
		return nil, err
	}
	if !release.IsKingpost(t) {
		return nil, errors.New("it is no disk of Kingpost, it has not all four partitions")
	}
	if !release.IsDefaultGUIDs(t) {
		m.DiskGUID = t.DiskGUID.String()
	}
	if m.esp, err = release.OpenESP(fat32.ReadOnly(disk), t); err != nil {
		return nil, err
	}
	cmdline, err := m.chooseEntries()
	if err != nil {
		return nil, err
	}
	if err := m.findRoot(disk, t, cmdline.HashOffset); err != nil {
		return nil, err
	}
	loader, err := release.RemovableLoader(arch)
	if err != nil {
		return nil, err
	}
	m.files = append(m.files, release.ESPLoaderConf, "EFI/BOOT/"+loader)
	if names, err := m.esp.List("EFI/systemd"); err == nil {
		for _, n := range names {
			if !n.Dir {
				m.files = append(m.files, "EFI/systemd/"+n.Name)
			}
		}
	}
	m.config, err = m.esp.ReadFile(release.ESPNodeConfig, mesh.MaxNodeConfig)
	if err != nil && !errors.Is(err, fat32.ErrNotFound) {
		return nil, err
	}
	m.dataSize, err = DataImageSize(data)
	return m, err
}

// chooseEntries takes the entry of the release that runs, and the rescue entry.
func (m *Medium) chooseEntries() (release.Cmdline, error) {
	all, err := release.ReadEntries(m.esp)
	if err != nil {
		return release.Cmdline{}, fmt.Errorf("boot entries: %w", err)
	}
	var runs release.Cmdline
	for _, e := range all {
		file := strings.TrimPrefix(e.EFI, "/")
		line, err := programCmdline(m.esp, file)
		if err != nil {
			continue // an entry that does not start is not taken along
		}
		switch {
		case line.Rescue && e.ID == release.RescueID:
		case line.RootHash == m.RootHash && m.Release == "":
			runs, m.Release = line, e.Version
			e.Counter = nil // it is the one that runs
		default:
			continue
		}
		m.entries = append(m.entries, e)
		m.files = append(m.files, file)
	}
	if m.Release == "" {
		return runs, fmt.Errorf("no boot entry on it starts the release that runs (root %.16s...); flash the medium anew", m.RootHash)
	}
	return runs, nil
}

// programCmdline is the command line of a UKI whose bytes hash to its name.
func programCmdline(esp *fat32.FS, file string) (release.Cmdline, error) {
	f, err := esp.OpenFile(file)
	if err != nil {
		return release.Cmdline{}, err
	}
	if f.Size() > maxProgram {
		return release.Cmdline{}, fmt.Errorf("%s has %d bytes", file, f.Size())
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, f.Size())); err != nil {
		return release.Cmdline{}, err
	}
	if hex.EncodeToString(h.Sum(nil))+".efi" != path.Base(file) {
		return release.Cmdline{}, fmt.Errorf("%s is damaged: it is not named by the hash of its bytes", file)
	}
	img, err := uki.Read(f, f.Size())
	if err != nil {
		return release.Cmdline{}, err
	}
	text, err := img.Text(uki.Cmdline)
	if err != nil {
		return release.Cmdline{}, err
	}
	return release.ParseCmdline(text)
}

func (m *Medium) findRoot(disk io.ReaderAt, t *gpt.Table, hashOffset int64) error {
	hash, err := hex.DecodeString(m.RootHash)
	if err != nil {
		return fmt.Errorf("the root hash %.80q: %w", m.RootHash, err)
	}
	var reasons []error
	for _, r := range release.FindRoots(disk, t, hash, hashOffset) {
		if r.Err != nil {
			reasons = append(reasons, fmt.Errorf("slot %s: %w", r.Letter, r.Err))
			continue
		}
		slot := io.NewSectionReader(disk, r.Start, r.Size)
		if m.rootSize, err = verity.Size(slot, hashOffset); err != nil {
			return fmt.Errorf("slot %s: %w", r.Letter, err)
		}
		m.root = slot
		return nil
	}
	return fmt.Errorf("no slot has the root that runs: %w", errors.Join(reasons...))
}

// DataImageSize is the size of the empty data partition that open reads, a zstd frame, in bytes.
func DataImageSize(open func() (io.ReadCloser, error)) (int64, error) {
	r, err := open()
	if err != nil {
		return 0, fmt.Errorf("the release's empty data partition: %w", err)
	}
	defer r.Close()
	head := make([]byte, zstd.HeaderMaxSize)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, fmt.Errorf("the release's empty data partition: %w", err)
	}
	var h zstd.Header
	if err := h.Decode(head[:n]); err != nil || !h.HasFCS || h.FrameContentSize == 0 || h.FrameContentSize > 1<<40 {
		return 0, fmt.Errorf("the release's empty data partition is no zstd frame that says its size: %v", err)
	}
	return int64(h.FrameContentSize), nil
}

// DataSize is the size of the release's empty data partition, in bytes.
func (m *Medium) DataSize() int64 { return m.dataSize }

// openData reads the empty data partition. A window of it is all that is kept in memory.
func (m *Medium) openData() (io.ReadCloser, error) {
	r, err := m.data()
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &dataReader{z, r}, nil
}

type dataReader struct {
	*zstd.Decoder
	under io.Closer
}

// Close implements io.Closer.
func (d *dataReader) Close() error {
	d.Decoder.Close()
	return d.under.Close()
}

// Mark is what the medium leaves on a disk that it installs.
func (m *Medium) Mark() Mark {
	k := Mark{Kind: markKind, Medium: m.DiskGUID, Root: m.RootHash, Release: m.Release}
	if m.config != nil {
		k.Config = fmt.Sprintf("%x", sha256.Sum256(m.config))
	}
	return k
}

// writeESP puts the medium's files onto a fresh ESP, one after the other, so that no more than one is in memory.
func (m *Medium) writeESP(to *fat32.FS, write func(name string, data []byte) error) error {
	for _, name := range m.files {
		data, err := m.esp.ReadFile(name, maxProgram)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errMedium, name, err)
		}
		if err := write(name, data); err != nil {
			return err
		}
	}
	for _, e := range m.entries {
		if err := write(release.ESPEntries+"/"+e.FileName(), e.Render()); err != nil {
			return err
		}
	}
	if m.config != nil {
		if err := write(release.ESPNodeConfig, m.config); err != nil {
			return err
		}
	}
	return write(MarkFile, m.Mark().encode())
}

// compareESP reads the files back.
func (m *Medium) compareESP(esp *fat32.FS) error {
	return m.writeESP(esp, func(name string, data []byte) error {
		got, err := esp.ReadFile(name, int64(len(data)))
		if err == nil && !bytes.Equal(got, data) {
			err = errors.New("it has other bytes than were written")
		}
		if err != nil {
			return fmt.Errorf("read back %s from the ESP: %w", name, err)
		}
		return nil
	})
}
