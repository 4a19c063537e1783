package mesh

import (
	"fmt"
	"io"
	"strconv"

	"kingpost/internal/strictjson"
)

// MaxResources bounds the resources of one manifest or declaration.
const MaxResources = 4096

// DecodeManifest reads a module.json: strict JSON of at most MaxManifest bytes, then Validate.
func DecodeManifest(r io.Reader) (Manifest, error) {
	var m Manifest
	if err := strictjson.Decode(r, MaxManifest, &m); err != nil {
		return Manifest{}, fmt.Errorf("read module.json: %w", err)
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// maxModuleVersion leaves room for "-ARCH": a version becomes a part of tags in the store.
const maxModuleVersion = 100

// checkModuleVersion takes what a tag in the store may be (OCI distribution specification 1.1, "Pulling manifests").
func checkModuleVersion(v string) error {
	if len(v) > maxModuleVersion {
		return fmt.Errorf("is longer than %d characters", maxModuleVersion)
	}
	for i, c := range v {
		word := c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !word && (i == 0 || c != '.' && c != '-') {
			return fmt.Errorf("%.120q: a version begins with a letter, a digit or _, and goes on with these, . and -", v)
		}
	}
	return nil
}

// Validate tells everything that is wrong with m, one line each, with its place
// ("resources[2].volumes[0].path: ..."). Whether the artifacts that m names exist is not its question.
func (m *Manifest) Validate() error {
	var p problems
	if m.Module != HostModule {
		p.check("module", CheckModule(m.Module))
	} else if len(m.Resources) != 1 {
		p.add("resources", "the module %s has exactly one resource, the host: %s", HostModule, hostForm)
	}
	if m.Version != "" {
		p.check("version", checkModuleVersion(m.Version))
	}
	set := newResourceSet(&p, len(m.Resources))
	for i := range m.Resources {
		r := &m.Resources[i]
		path := "resources[" + strconv.Itoa(i) + "]"
		if r.Digest != "" {
			p.add(path+".digest", "a manifest carries names only; its digests are bound when it is declared")
		}
		if r.Source != "" {
			p.add(path+".source", "only a declaration carries it")
		}
		if m.Module == HostModule {
			r.validateHost(&p, path)
		}
		set.add(path, m.Module, r)
	}
	set.finish()
	return p.err()
}
