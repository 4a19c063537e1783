package main

import (
	"bytes"
	"context"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"kingpost/internal/cpiofs"
	"kingpost/internal/mesh"
	"kingpost/internal/nodevm"
	"kingpost/internal/release"
	"kingpost/internal/uki"
)

// A baseline is the least that could boot: the image's own boot loader, stub, kernel and command line, with an initrd that
// only prints a line.
type baseline struct {
	disk         string
	uki, imageUK int64 // sizes of its UKI and of the image's, in bytes
}

const baselineLine = "kingpost-baseline: up"

// makeBaseline builds the baseline's disk from the image's ESP.
func (b *bench) makeBaseline(ctx context.Context, dir string) (*baseline, error) {
	f, err := os.Open(b.lab.Image)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	table, err := release.ReadGPT(f, b.lab.ImageSize, 0)
	if err != nil {
		return nil, err
	}
	esp, err := release.OpenESP(f, table)
	if err != nil {
		return nil, err
	}
	loader, err := esp.ReadFile("EFI/BOOT/BOOTX64.EFI", 8<<20)
	if err != nil {
		return nil, err
	}
	whole, err := nodevm.UKI(f)
	if err != nil {
		return nil, err
	}
	image, err := uki.Read(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		return nil, err
	}
	stub, err := stubOf(whole)
	if err != nil {
		return nil, err
	}
	init, err := b.baselineInit(ctx, dir)
	if err != nil {
		return nil, err
	}
	var initrd bytes.Buffer
	if err := cpiofs.WriteInitrd(&initrd, []cpiofs.Entry{{Path: "init", Mode: 0o755, Data: init}}); err != nil {
		return nil, err
	}
	var sections []uki.Section
	for _, s := range image.Sections {
		data, err := io.ReadAll(io.NewSectionReader(s.SectionReader, 0, s.Size()))
		if err != nil {
			return nil, err
		}
		switch s.Name {
		case uki.Initrd:
			data = initrd.Bytes()
		case uki.OSRel, uki.Cmdline, uki.Uname, uki.Linux:
		default:
			continue // of the stub
		}
		sections = append(sections, uki.Section{Name: s.Name, Data: data})
	}
	small, err := uki.Build(stub, sections)
	if err != nil {
		return nil, err
	}
	out := &baseline{disk: filepath.Join(dir, "baseline.img"), uki: int64(len(small)), imageUK: int64(len(whole))}
	return out, out.write(ctx, loader, small)
}

func (l *baseline) write(ctx context.Context, loader, small []byte) error {
	const arch = "amd64"
	files, err := release.ESPFiles(release.ESPSpec{
		Arch: arch, Info: mesh.ReleaseInfo{Name: "baseline", Version: "0.0.1", Date: "2026-01-01", Architecture: arch},
		Bootloader: loader, UKI: small, Rescue: small,
	})
	if err != nil {
		return err
	}
	plan, err := release.NewPlan(release.DiskSpec{Arch: arch, Seed: "baseline"})
	if err != nil {
		return err
	}
	f, err := os.Create(l.disk)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(plan.Size); err != nil {
		return err
	}
	return release.WriteDisk(ctx, f, plan, release.Contents{ESP: files, Time: fileTime()}, nil)
}

// baselineInit is a program that prints a line.
func (b *bench) baselineInit(ctx context.Context, dir string) ([]byte, error) {
	program := filepath.Join(dir, "init")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./qemu-tests/bench/baseline-init")
	cmd.Dir, cmd.Env = b.lab.Root, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the baseline's init: %w: %s", err, out)
	}
	return os.ReadFile(program)
}

// stubOf takes the sections that make a UKI off its stub: what is left is the stub as systemd built it, but for the
// padding of its header. (PE format: Microsoft's specification, sections 3 and 4.)
func stubOf(image []byte) ([]byte, error) {
	f, err := pe.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("read the UKI: %w", err)
	}
	defer f.Close()
	opt, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return nil, fmt.Errorf("the UKI is no PE32+ program")
	}
	keep, end, top := 0, uint32(0), uint32(0)
	for i, s := range f.Sections {
		switch s.Name {
		case uki.OSRel, uki.Cmdline, uki.Uname, uki.Initrd, uki.Linux:
			continue
		}
		if i != keep {
			return nil, fmt.Errorf("the UKI's own sections do not come last")
		}
		keep++
		end, top = max(end, s.Offset+s.Size), max(top, s.VirtualAddress+s.VirtualSize)
	}
	out := bytes.Clone(image[:end])
	header := int(binary.LittleEndian.Uint32(out[0x3c:]))
	table := header + 24 + int(f.SizeOfOptionalHeader)
	binary.LittleEndian.PutUint16(out[header+6:], uint16(keep))
	clear(out[table+40*keep : table+40*len(f.Sections)])
	align := opt.SectionAlignment
	binary.LittleEndian.PutUint32(out[header+24+56:], (top+align-1)/align*align)
	return out, nil
}
