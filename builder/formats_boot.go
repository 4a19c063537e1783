package builder

import (
	"context"
	"fmt"
	"os"

	"kingpost/internal/fat32"
	"kingpost/internal/release"
)

// rootOutput is the root image.
type rootOutput struct{}

func (rootOutput) Info() OutputInfo {
	return OutputInfo{Name: FileRoot, About: "root file system with its hash tree: what goes into a slot", Default: true}
}

func (rootOutput) Files(string) []string { return []string{FileRoot} }

// Write finds the image in its place: it was made with the release, since the UKI pins its hash.
func (rootOutput) Write(_ context.Context, b *Built, _ func(done, total int64)) (string, error) {
	return mib(b.root.Size), nil
}

// ukiOutput is the UKIs alone.
type ukiOutput struct{}

func (ukiOutput) Info() OutputInfo {
	return OutputInfo{Name: "uki", About: "the UKIs of the release and of the rescue entry", Default: true}
}

func (ukiOutput) Files(recipe string) []string { return []string{FileUKI(recipe), FileRescue} }

func (o ukiOutput) Write(_ context.Context, b *Built, _ func(done, total int64)) (string, error) {
	return writeFiles(b, map[string][]byte{FileUKI(b.recipe.Name): b.boot.uki, FileRescue: b.boot.rescue})
}

// directOutput is what starts the release without firmware.
type directOutput struct{}

func (directOutput) Info() OutputInfo {
	return OutputInfo{Name: "direct", About: "kernel, initrd and command line, for a direct start beside a disk", Default: true}
}

func (directOutput) Files(string) []string { return []string{FileKernel, FileInitrd, FileCmdline} }

func (o directOutput) Write(_ context.Context, b *Built, _ func(done, total int64)) (string, error) {
	return writeFiles(b, map[string][]byte{FileKernel: b.boot.kernel, FileInitrd: b.boot.initrd, FileCmdline: []byte(b.boot.cmdline.String() + "\n")})
}

// writeFiles writes small files and returns how large they are together.
func writeFiles(b *Built, files map[string][]byte) (string, error) {
	n := int64(0)
	for name, data := range files {
		if err := os.WriteFile(b.path(name), data, 0o644); err != nil {
			return "", err
		}
		n += int64(len(data))
	}
	return mib(n), nil
}

// espFiles lays out an ESP with the release.
func (b *Built) espFiles() ([]fat32.File, error) {
	files, err := release.ESPFiles(release.ESPSpec{Arch: b.info.Architecture, Info: b.info, Bootloader: b.boot.loader, UKI: b.boot.uki, Rescue: b.boot.rescue})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", release.PartESP, err)
	}
	return files, nil
}
