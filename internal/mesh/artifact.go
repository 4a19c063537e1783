package mesh

import "fmt"

// ArtifactKind is the class of an artifact in the store and the seed; it is the first part of its repository name.
type ArtifactKind string

const (
	ArtifactBundle ArtifactKind = "bundle" // a process's files
	ArtifactImage  ArtifactKind = "image"  // a container's OCI image
	ArtifactModule ArtifactKind = "module" // a module.json
)

// Ref names an artifact without binding it to a digest. Its repository in the store, and the
// org.opencontainers.image.ref.name annotation in the seed, is "KIND/NAME:TAG", for example
// "bundle/mesh-controller:0.1.0-amd64"; a module has no architecture: "module/controller:0.1.0".
type Ref struct {
	Kind ArtifactKind `json:"kind"`
	Name string       `json:"name"`
}

// Repository is the artifact's repository in the store: "bundle/mesh-controller".
func (r Ref) Repository() string { return string(r.Kind) + "/" + r.Name }

func (r Ref) String() string { return r.Repository() }

// IsZero reports whether r names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// Tag is the tag of an artifact: "VERSION-ARCH", or "VERSION" where arch is empty.
func Tag(version, arch string) string {
	if arch == "" {
		return version
	}
	return fmt.Sprintf("%s-%s", version, arch)
}

// Media types and artifact types. A bundle is an OCI 1.1 image manifest with ArtifactType set, a
// BundleConfig as its config and one layer, a zstd-compressed tar. The component's image, where it has
// one, is another manifest over the same layer blob, so it costs a kilobyte.
const (
	TypeBundle       = "application/vnd.kingpost.bundle.v1"
	TypeBundleConfig = "application/vnd.kingpost.bundle.config.v1+json"
	TypeModule       = "application/vnd.kingpost.module.v1"
	TypeModuleJSON   = "application/vnd.kingpost.module.v1+json" // the one layer of a module artifact
)

// Digests binds names to digests, per artifact and architecture: Digests["bundle/mesh-controller"]["amd64"] = "sha256:...".
type Digests map[string]map[string]string

// BundleConfig is the config blob of a bundle. It lists every file of the layer, so that a host can
// check what it runs from disk against the bundle's own digest at every start, without the layer.
type BundleConfig struct {
	Architecture string       `json:"architecture"`
	Files        []BundleFile `json:"files"`
}

// BundleFile is one regular file or symbolic link of a bundle; directories are implied.
type BundleFile struct {
	Path string `json:"path"` // clean, relative, slash-separated
	Mode uint32 `json:"mode"` // permission bits only: 0o644 or 0o755
	Size int64  `json:"size"` // bytes
	Link string `json:"link,omitempty"`
	// SHA256 is the hex digest of the content.
	SHA256 string `json:"sha256,omitempty"`
	// FSVerity is the hex fs-verity digest (SHA-256, 4096-byte blocks, no salt) as FS_IOC_MEASURE_VERITY gives it.
	FSVerity string `json:"fsverity,omitempty"`
}
