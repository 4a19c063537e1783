package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
)

// ReadBundleConfig returns the config of the bundle digest.
func ReadBundleConfig(ctx context.Context, src Source, ref mesh.Ref, digest string) (*mesh.BundleConfig, error) {
	_, m, err := loadParsed(ctx, src, ref, digest)
	if err != nil {
		return nil, err
	}
	return readBundleConfig(ctx, src, ref, m)
}

func readBundleConfig(ctx context.Context, src Source, ref mesh.Ref, m *ocispec.Manifest) (*mesh.BundleConfig, error) {
	raw, err := ReadBlob(ctx, src, ref, m.Config)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	return ParseBundleConfig(raw)
}

// ParseBundleConfig reads a bundle's config and checks that every path in it is one that a bundle may hold.
func ParseBundleConfig(raw []byte) (*mesh.BundleConfig, error) {
	var cfg mesh.BundleConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, fmt.Errorf("bundle config: %w", err)
	}
	for _, f := range cfg.Files {
		if err := checkBundlePath(f.Path); err != nil {
			return nil, fmt.Errorf("bundle config: %w", err)
		}
		if f.Link != "" {
			if err := checkBundleLink(f.Path, f.Link); err != nil {
				return nil, fmt.Errorf("bundle config: %w", err)
			}
			continue
		}
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("bundle config: %s has no SHA-256 digest", f.Path)
		}
	}
	return &cfg, nil
}

// ReadImageConfig returns the config of the image digest.
func ReadImageConfig(ctx context.Context, src Source, ref mesh.Ref, digest string) (*ocispec.Image, error) {
	_, m, err := loadParsed(ctx, src, ref, digest)
	if err != nil {
		return nil, err
	}
	return readImageConfig(ctx, src, ref, m)
}

func readImageConfig(ctx context.Context, src Source, ref mesh.Ref, m *ocispec.Manifest) (*ocispec.Image, error) {
	raw, err := ReadBlob(ctx, src, ref, m.Config)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	var cfg ocispec.Image
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, fmt.Errorf("image config: %w", err)
	}
	if cfg.OS != "" && cfg.OS != "linux" {
		return nil, fmt.Errorf("image is for %.20q, wanted linux", cfg.OS)
	}
	if len(cfg.RootFS.DiffIDs) != len(m.Layers) {
		return nil, fmt.Errorf("image config names %d layers, its manifest %d", len(cfg.RootFS.DiffIDs), len(m.Layers))
	}
	return &cfg, nil
}

// CheckFiles checks an unpacked bundle in dir against its config: every file and link as listed, by SHA-256,
// and nothing beside them. What it finds is a *DigestError or names the file.
func CheckFiles(dir string, cfg *mesh.BundleConfig) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	listed := map[string]bool{}
	for _, f := range cfg.Files {
		listed[f.Path] = true
		if err := checkFile(root, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if !listed[filepath.ToSlash(rel)] {
			return fmt.Errorf("%s is not in the bundle's config", rel)
		}
		return nil
	})
}

func checkFile(root *os.Root, want mesh.BundleFile) error {
	if want.Link != "" {
		got, err := root.Readlink(want.Path)
		if err == nil && got != want.Link {
			err = fmt.Errorf("links to %q, wanted %q", got, want.Link)
		}
		return err
	}
	st, err := root.Lstat(want.Path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("is no regular file")
	}
	if st.Size() != want.Size {
		return fmt.Errorf("has %d bytes, wanted %d", st.Size(), want.Size)
	}
	if st.Mode().Perm() != fs.FileMode(want.Mode) {
		return fmt.Errorf("has mode %04o, wanted %04o", st.Mode().Perm(), want.Mode)
	}
	f, err := root.Open(want.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want.SHA256 {
		return &DigestError{Want: "sha256:" + want.SHA256, Got: "sha256:" + got}
	}
	return nil
}
