// Package madeup makes images for tests: everything that a boot looks at, in a few MiB, with programs that are none. Nothing
// but tests uses it. Start with Make.
package madeup

import (
	"bytes"
	"context"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"kingpost/internal/faultdisk"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
	"kingpost/internal/uki"
	"kingpost/internal/verity"
)

// Image is a made-up image.
type Image struct {
	Disk *faultdisk.Disk
	Root string // its root hash, hex
}

// imageTime is the time of every file in an image.
var imageTime = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// Make makes an image of a release with the given version and size of the ESP in bytes, small enough to be written thousands
// of times. The same version gives the same bytes.
func Make(version string, espSize int64) (*Image, error) {
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
			return nil, err
		}
	}
	info, err := verity.Append(context.Background(), root, blocks*verity.BlockSize, verity.Params{Salt: []byte("salt")})
	if err != nil {
		return nil, err
	}
	cmd, err := release.NewCmdline("amd64", fmt.Sprintf("%x", info.RootHash), info.HashOffset)
	if err != nil {
		return nil, err
	}
	rescue, err := release.RescueCmdline("amd64")
	if err != nil {
		return nil, err
	}
	loader, err := stub()
	if err != nil {
		return nil, err
	}
	build := func(cmdline string) ([]byte, error) {
		kernel := make([]byte, 20_000)
		rnd.Read(kernel)
		return uki.Build(loader, []uki.Section{{Name: uki.OSRel, Data: []byte("PRETTY_NAME=" + version)}, {Name: uki.Cmdline, Data: []byte(cmdline)}, {Name: uki.Linux, Data: kernel}})
	}
	program, err := build(cmd.String())
	if err != nil {
		return nil, err
	}
	rescueProgram, err := build(rescue.String())
	if err != nil {
		return nil, err
	}
	esp, err := release.ESPFiles(release.ESPSpec{Arch: "amd64", Info: mesh.ReleaseInfo{Name: "node", Version: version},
		Bootloader: []byte("boot loader of " + version), UKI: program, Rescue: rescueProgram})
	if err != nil {
		return nil, err
	}
	plan, err := release.NewPlan(release.DiskSpec{Arch: "amd64", ESPSize: espSize, RootSize: 1 << 20, DataSize: 1 << 20})
	if err != nil {
		return nil, err
	}
	data := make([]byte, 1<<20)
	rnd.Read(data[4096:8192])
	rnd.Read(data[500_000:510_000])
	d := faultdisk.New(plan.Size, 512)
	err = release.WriteDisk(context.Background(), d, plan, release.Contents{ESP: esp, Time: imageTime,
		RootA: &release.Content{ReaderAt: root, Size: info.Size}, Data: &release.Content{ReaderAt: bytes.NewReader(data), Size: int64(len(data))}}, nil)
	if err != nil {
		return nil, err
	}
	return &Image{d, fmt.Sprintf("%x", info.RootHash)}, nil
}

// stub is the smallest EFI program that sections can be appended to.
func stub() ([]byte, error) {
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
			return nil, err
		}
	}
	return append(b.Bytes(), make([]byte, 0x600-b.Len())...), nil
}
