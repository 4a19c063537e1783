package flash

import (
	"bytes"
	"context"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"kingpost/installer/diskwrite"
	"kingpost/internal/blockmap"
	"kingpost/internal/faultdisk"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
	"kingpost/internal/uki"
	"kingpost/internal/verity"
)

var testTime = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// stub is the smallest EFI program that sections can be appended to.
func stub(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	b.Write(append([]byte{'M', 'Z'}, make([]byte, 0x3e)...))
	binary.LittleEndian.PutUint32(b.Bytes()[0x3c:], 0x40)
	b.WriteString("PE\x00\x00")
	opt := pe.OptionalHeader64{Magic: 0x20b, SectionAlignment: 4096, FileAlignment: 512, SizeOfImage: 0x3000,
		SizeOfHeaders: 0x200, Subsystem: pe.IMAGE_SUBSYSTEM_EFI_APPLICATION, NumberOfRvaAndSizes: 16, AddressOfEntryPoint: 0x1000}
	for _, v := range []any{
		pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: 1, SizeOfOptionalHeader: uint16(binary.Size(opt)), Characteristics: 0x22e},
		opt,
		pe.SectionHeader32{Name: [8]uint8{'.', 't', 'e', 'x', 't'}, VirtualSize: 0x1800, VirtualAddress: 0x1000, SizeOfRawData: 0x200, PointerToRawData: 0x400, Characteristics: 0x60000020},
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return append(b.Bytes(), make([]byte, 0x600-b.Len())...)
}

// madeUp is an image with everything that a boot looks at.
type madeUp struct {
	disk *faultdisk.Disk
	root string // its root hash, hex
}

// makeImage makes an image of a release with the given version, small enough to be written thousands of times.
func makeImage(t testing.TB, version string, espSize int64) *madeUp {
	t.Helper()
	rnd := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", version))))
	root := faultdisk.New(1<<20, 512)
	const blocks = 40
	for i := range blocks {
		if i%4 == 3 {
			continue // a hole
		}
		b := make([]byte, verity.BlockSize)
		rnd.Read(b)
		if _, err := root.WriteAt(b, int64(i)*verity.BlockSize); err != nil {
			t.Fatal(err)
		}
	}
	info, err := verity.Append(context.Background(), root, blocks*verity.BlockSize, verity.Params{Salt: []byte("salt")})
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := release.NewCmdline("amd64", fmt.Sprintf("%x", info.RootHash), info.HashOffset)
	if err != nil {
		t.Fatal(err)
	}
	rescue, err := release.RescueCmdline("amd64")
	if err != nil {
		t.Fatal(err)
	}
	build := func(cmdline string) []byte {
		kernel := make([]byte, 20_000)
		rnd.Read(kernel)
		b, err := uki.Build(stub(t), []uki.Section{{Name: uki.OSRel, Data: []byte("PRETTY_NAME=" + version)}, {Name: uki.Cmdline, Data: []byte(cmdline)}, {Name: uki.Linux, Data: kernel}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	esp, err := release.ESPFiles(release.ESPSpec{Arch: "amd64", Info: mesh.ReleaseInfo{Name: "node", Version: version},
		Bootloader: []byte("boot loader of " + version), UKI: build(cmd.String()), Rescue: build(rescue.String())})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := release.NewPlan(release.DiskSpec{Arch: "amd64", ESPSize: espSize, RootSize: 1 << 20, DataSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	rnd.Read(data[4096:8192])
	rnd.Read(data[500_000:510_000])
	d := faultdisk.New(plan.Size, 512)
	err = release.WriteDisk(context.Background(), d, plan, release.Contents{ESP: esp, Time: testTime,
		RootA: &release.Content{ReaderAt: root, Size: info.Size}, Data: &release.Content{ReaderAt: bytes.NewReader(data), Size: int64(len(data))}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &madeUp{d, fmt.Sprintf("%x", info.RootHash)}
}

const smallESP = 40 << 20

// pieces gives an image piece by piece, as a source without holes does.
type pieces struct {
	r    io.ReaderAt
	size int64
	at   int64
	fail func(at int64) error
}

func (p *pieces) Next(_ context.Context, buf []byte) (diskwrite.Block, error) {
	if p.fail != nil {
		if err := p.fail(p.at); err != nil {
			return diskwrite.Block{}, err
		}
	}
	n := min(int64(len(buf)), p.size-p.at)
	if n <= 0 {
		return diskwrite.Block{}, io.EOF
	}
	if k, err := p.r.ReadAt(buf[:n], p.at); int64(k) < n {
		return diskwrite.Block{}, err
	}
	b := diskwrite.Block{Off: p.at, Data: buf[:n]}
	if blockmap.IsZero(b.Data) {
		b = diskwrite.Block{Off: p.at, Zeros: n}
	}
	p.at += n
	return b, nil
}

func (m *madeUp) source() *pieces { return &pieces{r: m.disk, size: m.disk.Size()} }

// input is a flash of m to d, the same each time.
func (m *madeUp) input(t testing.TB, d diskwrite.Target) Input {
	t.Helper()
	want, err := blockmap.Make(context.Background(), m.disk, m.disk.Size())
	if err != nil {
		t.Fatal(err)
	}
	return Input{Source: m.source(), Size: m.disk.Size(), Map: want, Target: d, Random: rand.NewChaCha8([32]byte{1}), Time: testTime, Workers: 1,
		Config: []byte("hostname: alpha\n")}
}

// dirty is a disk full of other bytes, with the size of m's and more.
func (m *madeUp) dirty(t testing.TB, more int64, sectorSize int) *faultdisk.Disk {
	t.Helper()
	d := faultdisk.New(m.disk.Size()+more, sectorSize)
	b := bytes.Repeat([]byte("old!"), 1<<18)
	for off := int64(0); off < d.Size(); off += int64(len(b)) {
		if _, err := d.WriteAt(b[:min(int64(len(b)), d.Size()-off)], off); err != nil {
			t.Fatal(err)
		}
	}
	return d
}
