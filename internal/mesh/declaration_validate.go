package mesh

import (
	"fmt"
	"io"
	"strconv"

	"kingpost/internal/strictjson"
)

// MaxDeclaration bounds a declaration, in bytes of JSON.
const MaxDeclaration = 16 << 20

// DecodeDeclaration reads a declaration: strict JSON of at most MaxDeclaration bytes, then Validate.
func DecodeDeclaration(r io.Reader) (Declaration, error) {
	var d Declaration
	if err := strictjson.Decode(r, MaxDeclaration, &d); err != nil {
		return Declaration{}, fmt.Errorf("read declaration: %w", err)
	}
	if err := d.Validate(); err != nil {
		return Declaration{}, err
	}
	return d, nil
}

// Validate tells everything that is wrong with d, as Manifest.Validate does. Whether its version is
// acceptable is for the host to say.
func (d *Declaration) Validate() error {
	var p problems
	p.check("mesh", CheckName(d.Mesh))
	p.check("node", CheckName(d.Node))
	set := newResourceSet(&p, len(d.Resources))
	for i := range d.Resources {
		r := &d.Resources[i]
		path := "resources[" + strconv.Itoa(i) + "]"
		if r.Module == HostModule {
			r.validateHost(&p, path)
		} else if err := CheckModule(r.Module); err != nil {
			p.add(path+".module", "%s", err)
			continue
		}
		if ref := r.Artifact(); !ref.IsZero() {
			if err := CheckDigest(r.Digest); err != nil {
				p.add(path+".digest", "%s", err)
			}
		} else if r.Digest != "" {
			p.add(path+".digest", "a %s has no artifact", r.Type)
		}
		switch r.Source {
		case SourceAny, SourceSeed, SourceStore:
		default:
			p.add(path+".source", "%q is unknown; use %q, %q or nothing", r.Source, SourceSeed, SourceStore)
		}
		set.add(path, r.Module, &r.Resource)
	}
	set.finish()
	return p.err()
}

// CheckDigest accepts "sha256:" and 64 lower-case hex digits (OCI image specification, descriptor.md, digests).
func CheckDigest(s string) error {
	const prefix = "sha256:"
	if s == "" {
		return fmt.Errorf("the digest is missing")
	}
	if len(s) != len(prefix)+64 || s[:len(prefix)] != prefix {
		return fmt.Errorf("%.80q is no digest; sha256: and 64 hex digits are expected", s)
	}
	for _, c := range s[len(prefix):] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("the digest %q has %q; lower-case hex digits are expected", s, c)
		}
	}
	return nil
}
