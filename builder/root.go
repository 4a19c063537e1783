package builder

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"kingpost/internal/mesh"
	"kingpost/internal/rootfs"
	"kingpost/internal/verity"
)

// rootInputs is what the root image is made of.
type rootInputs struct {
	recipe   *Recipe
	info     mesh.ReleaseInfo
	kernel   *kernel
	host     binary
	stub     binary
	programs []pkgFile
	firmware []string // unpacked packages
	seed     string   // folder
	data     string   // an empty data partition, compressed
}

// emptyDirs are mount points and what must be there to begin with.
var emptyDirs = []string{"proc", "sys", "dev", "run", "var", "tmp", "boot", "mnt", "root"}

// rootTree lays out the root.
func rootTree(in rootInputs) (*rootfs.Tree, error) {
	t := rootfs.New(nil)
	var errs []error
	try := func(err error) { errs = append(errs, err) }
	for _, d := range emptyDirs {
		try(t.AddDir(d, 0o755))
	}
	try(t.AddDir("tmp", 0o777|fs.ModeSticky))
	try(t.AddDir("root", 0o700))
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		try(t.AddDir("usr/"+l, 0o755))
		try(t.AddSymlink(l, "usr/"+l))
	}
	try(t.AddOSFile(strings.TrimPrefix(mesh.PathHost, "/"), 0o755, in.host.File))
	try(t.AddOSFile(strings.TrimPrefix(mesh.PathStub, "/"), 0o755, in.stub.File))
	for _, f := range in.programs {
		if f.link != "" {
			try(t.AddSymlink(f.path, f.link))
			continue
		}
		try(t.AddOSFile(f.path, 0o755, f.file))
	}
	try(t.AddFS(path.Join(strings.TrimPrefix(mesh.PathModules, "/"), in.kernel.Version), os.DirFS(in.kernel.modules())))
	for _, tree := range in.firmware {
		try(addFirmware(t, tree))
	}
	info, err := json.Marshal(in.info)
	try(err)
	try(t.AddBytes(strings.TrimPrefix(mesh.PathRelease, "/"), 0o644, append(info, '\n')))
	try(t.AddOSFile(strings.TrimPrefix(mesh.PathDataImage, "/"), 0o644, in.data))
	try(t.AddBytes("usr/share/kingpost/modules-load", 0o644, []byte(lines(in.recipe.Debian.on(in.info.Architecture).Load))))
	try(t.AddFS(strings.TrimPrefix(mesh.PathSeed, "/"), os.DirFS(in.seed)))
	for name, text := range etcFiles(in.recipe, in.info) {
		try(t.AddBytes("etc/"+name, 0o644, []byte(text)))
	}
	try(t.AddSymlink("etc/resolv.conf", "/run/resolv.conf"))
	return t, errors.Join(errs...)
}

func lines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}

func etcFiles(r *Recipe, info mesh.ReleaseInfo) map[string]string {
	return map[string]string{
		"os-release":    osRelease(info),
		"passwd":        "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         "root:x:0:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	}
}

// osRelease is os-release(5). IMAGE_VERSION is what a boot loader sorts a UKI by.
func osRelease(info mesh.ReleaseInfo) string {
	return fmt.Sprintf("ID=kingpost\nNAME=Kingpost\nPRETTY_NAME=\"Kingpost %[1]s %[2]s\"\nVERSION_ID=%[2]s\nIMAGE_ID=%[1]s\nIMAGE_VERSION=%[2]s\n",
		info.Name, info.Version)
}

// addFirmware adds a package's firmware with the links in it.
func addFirmware(t *rootfs.Tree, tree string) error {
	found := false
	for _, dir := range []string{"usr/lib/firmware", "lib/firmware"} {
		err := filepath.WalkDir(filepath.Join(tree, dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return ignoreMissing(err)
			}
			rel, err := filepath.Rel(tree, p)
			if err != nil {
				return err
			}
			found = true
			name := usrMerged(filepath.ToSlash(rel))
			if d.Type()&fs.ModeSymlink != 0 {
				target, err := os.Readlink(p)
				return errors.Join(err, t.AddSymlink(name, target))
			}
			return t.AddOSFile(name, 0o644, p)
		})
		if err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s has no firmware in it", tree)
	}
	return nil
}

// fixedID is 16 bytes that a release has in place of chance, a UUID of version 8 (RFC 9562, section 5.8).
func fixedID(info mesh.ReleaseInfo, what string) [16]byte {
	sum := sha256.Sum256([]byte(strings.Join([]string{"kingpost", what, info.Name, info.Version, info.Date, info.Architecture}, "\x00")))
	var id [16]byte
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// rootImage is a root image that was written.
type rootImage struct {
	file string
	verity.Info
}

// writeRoot writes the root image with its hash tree to file, and checks that the whole fits a slot.
func writeRoot(ctx context.Context, file string, in rootInputs, phase Phase) (*rootImage, error) {
	t, err := rootTree(in)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := rootfs.WriteEROFS(ctx, f, t, rootfs.Options{UUID: fixedID(in.info, "root"), Time: in.recipe.Time()})
	if err != nil {
		return nil, err
	}
	phase.Progress(size, size)
	// Never random: the same tree must have the same root hash.
	salt := sha256.Sum256([]byte("kingpost salt\x00" + in.info.Name + "\x00" + in.info.Version))
	v, err := verity.Append(ctx, f, size, verity.Params{Salt: salt[:], UUID: fixedID(in.info, "verity")})
	if err != nil {
		return nil, err
	}
	if _, err := slotRoom(in.recipe, v.Size); err != nil {
		return nil, err
	}
	return &rootImage{file, v}, f.Close()
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
