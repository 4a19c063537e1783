package imagesource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"kingpost/internal/blockmap"
)

// Vouched is what is known of an image before it is read.
type Vouched struct {
	// By is what says so: "release.json", "disk.img.bmap"; empty where nothing does.
	By     string
	Digest string // SHA-256 of the image in hex; empty where it is not known
	Size   int64  // bytes; 0 where it is not known
	Map    *blockmap.Map
}

const (
	releaseFile = "release.json"
	mapSuffix   = ".bmap"
	maxRelease  = 1 << 20
)

// listing is the part of a build's release.json that is read here.
type listing struct {
	Files []struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
	} `json:"files"`
}

// vouch looks at what lies beside an image, by a function that reads a file there (fs.ErrNotExist where there is none). A map
// that the list names must be the one that it names: a map of another build is an error, not a hint.
func vouch(name string, read func(file string, limit int64) ([]byte, error)) (Vouched, error) {
	var v Vouched
	raw, err := read(name+mapSuffix, blockmap.MaxText)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return v, fmt.Errorf("%s%s: %w", name, mapSuffix, err)
	}
	if err == nil {
		m, err := blockmap.Parse(raw)
		if err == nil {
			v.Map, v.By, v.Size = m, name+mapSuffix, m.Size
		} else if !errors.Is(err, blockmap.ErrForeign) {
			return v, fmt.Errorf("%s%s: %w; remove it, or fetch it again", name, mapSuffix, err)
		}
	}
	text, err := read(releaseFile, maxRelease)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", releaseFile, err)
	}
	var l listing
	if err := json.Unmarshal(text, &l); err != nil {
		return v, nil // somebody else's file of that name
	}
	sums := map[string]string{}
	for _, f := range l.Files {
		sums[f.Name] = f.SHA256
		if f.Name == name {
			v.Digest, v.Size = f.SHA256, f.Size
		}
	}
	if v.Digest == "" {
		return v, nil
	}
	if b, err := hex.DecodeString(v.Digest); err != nil || len(b) != sha256.Size {
		return v, fmt.Errorf("%s: the SHA-256 of %s is %.80q", releaseFile, name, v.Digest)
	}
	v.By = releaseFile
	if v.Map == nil {
		return v, nil
	}
	switch want := sums[name+mapSuffix]; {
	case want == "":
		v.Map = nil // nobody vouches for it
	case want != fmt.Sprintf("%x", sha256.Sum256(raw)):
		return v, fmt.Errorf("%s%s is not the one that %s names: they are of different builds; fetch both again", name, mapSuffix, releaseFile)
	}
	return v, nil
}
