package verbs

import (
	"time"

	"kingpost/internal/mesh"
)

// ListParams selects artifacts of the catalogue.
type ListParams struct {
	Kind mesh.ArtifactKind `json:"kind,omitempty"`
	Name string            `json:"name,omitempty"`
}

// ListResult lists artifacts, sorted by kind, name and tag.
type ListResult struct {
	Artifacts []CatalogueEntry `json:"artifacts"`
	At        time.Time        `json:"at"`              // when the store was read
	Stale     string           `json:"stale,omitempty"` // why it was not read just now
}

// CatalogueEntry is one artifact that stands in the store.
type CatalogueEntry struct {
	mesh.Ref
	Tag     string `json:"tag"`
	Version string `json:"version"`
	Arch    string `json:"arch,omitempty"`
	Digest  string `json:"digest"`
	Size    int64  `json:"size"` // bytes of its manifest and blobs
	Created string `json:"created,omitempty"`
}

// ShowParams names one artifact, by either tag or digest.
type ShowParams struct {
	Kind   mesh.ArtifactKind `json:"kind"`
	Name   string            `json:"name"`
	Tag    string            `json:"tag,omitempty"`
	Digest string            `json:"digest,omitempty"`
}

// ShowResult is an artifact with what it is made of.
type ShowResult struct {
	CatalogueEntry
	MediaType string         `json:"mediaType"`
	Config    string         `json:"config"` // digest
	Layers    []Layer        `json:"layers"`
	Manifest  *mesh.Manifest `json:"manifest,omitempty"` // of a module
}

// Layer is one blob of an artifact.
type Layer struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// ResolveParams asks which digest a name stands for.
type ResolveParams struct {
	Kind    mesh.ArtifactKind `json:"kind"`
	Name    string            `json:"name"`
	Arch    string            `json:"arch,omitempty"`    // needed for bundles and images
	Version string            `json:"version,omitempty"` // absent: the highest
}

// ResolveResult is the answer.
type ResolveResult struct {
	Digest  string `json:"digest"`
	Tag     string `json:"tag"`
	Version string `json:"version"`
}

// BuildParams makes a bundle from files that are built already. Exactly one of Files and Blob is given.
type BuildParams struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Arch    string `json:"arch"` // Go's name: "amd64"
	// Files are the bundle's files, at most MaxBuildInline bytes together.
	Files []BuildFile `json:"files,omitempty"`
	// Blob is the digest of a tar (plain, gzip or zstd) of BlobSize bytes that was pushed to the store's
	// repository BuildInputRepository.
	Blob     string `json:"blob,omitempty"`
	BlobSize int64  `json:"blobSize,omitempty"`
	// Command is the program that must be in it; absent: bin/NAME.
	Command string `json:"command,omitempty"`
}

// MaxBuildInline bounds BuildParams.Files, in bytes of content.
const MaxBuildInline = 16 << 20

// BuildInputRepository is where the input of a build is pushed to.
const BuildInputRepository = "builder/input"

// BuildFile is one file of a build.
type BuildFile struct {
	Path       string `json:"path"`
	Executable bool   `json:"executable,omitempty"`
	Content    []byte `json:"content"` // base64 in JSON
}

// BuildRecord is a build that was made.
type BuildRecord struct {
	Number  uint64    `json:"number"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Arch    string    `json:"arch"`
	Tag     string    `json:"tag"`
	Digest  string    `json:"digest"`
	Files   int       `json:"files"`
	Size    int64     `json:"size"`
	At      time.Time `json:"at"`
	By      string    `json:"by"`
}

// BuildsParams selects builds.
type BuildsParams struct {
	Name string `json:"name,omitempty"`
}

// BuildsResult lists builds, newest first.
type BuildsResult struct {
	Builds []BuildRecord `json:"builds"`
}

// PutParams stores a secret as its next version. Exactly one of Value and Bytes is given.
type PutParams struct {
	Name  string `json:"name"` // "MODULE/NAME"
	Value string `json:"value,omitempty"`
	Bytes []byte `json:"bytes,omitempty"` // base64 in JSON
}

// PutResult names the version that was stored.
type PutResult struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
}

// GetParams reads a secret; Version 0 is the newest.
type GetParams struct {
	Name    string `json:"name"`
	Version uint64 `json:"version,omitempty"`
}

// GetResult is a secret: in Value where it is text (UTF-8), else in Bytes.
type GetResult struct {
	Name    string `json:"name"`
	Version uint64 `json:"version"`
	Value   string `json:"value,omitempty"`
	Bytes   []byte `json:"bytes,omitempty"`
}

// SecretsParams selects secrets.
type SecretsParams struct {
	Module string `json:"module,omitempty"`
}

// SecretsResult lists what the caller may see, without values.
type SecretsResult struct {
	Secrets []SecretInfo `json:"secrets"`
	Keys    []KeyInfo    `json:"keys"`
}

// SecretInfo is a secret without its value.
type SecretInfo struct {
	Name     string    `json:"name"`
	Version  uint64    `json:"version"`
	Versions int       `json:"versions"` // how many are kept
	At       time.Time `json:"at"`
}

// KeyInfo is a signing key's public half.
type KeyInfo struct {
	Name   string `json:"name"`
	Public string `json:"public"` // "ed25519:" and the base64 of its PKIX form
}

// SignParams signs Message by the ed25519 key Name, which is made on its first use and never leaves the vault.
type SignParams struct {
	Name    string `json:"name"`    // "MODULE/NAME"
	Message []byte `json:"message"` // base64 in JSON
}

// SignResult is a signature (RFC 8032, Ed25519) and who can check it.
type SignResult struct {
	Name      string `json:"name"`
	Signature []byte `json:"signature"`
	Public    string `json:"public"`
}
