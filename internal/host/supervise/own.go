package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Own is the host's own resource, mesh.HostKey: declared like any other, and applied by whoever hands it to the launcher.
type Own interface {
	// Observe is how the declared host stands; settled, whether it is as declared. d is nil where a declaration leaves
	// the host to the release: then only settled counts.
	Observe(d *mesh.Declared) (v hostapi.ResourceStatus, settled bool)
	// Keep lists the digests of the bundles that the launcher may have to start.
	Keep() []string
	// Clear lets the declared host out of quarantine.
	Clear() error
}

// FetchBundle has the files of a bundle on disk, checked, and returns their folder and list.
func (s *Supervisor) FetchBundle(ctx context.Context, name, digest string, source mesh.Source) (dir string, files *mesh.BundleConfig, err error) {
	st, err := s.content.ensure(ctx, mesh.Ref{Kind: mesh.ArtifactBundle, Name: name}, digest, source)
	if err != nil {
		return "", nil, err
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(st.Files), "config.json"))
	if err == nil {
		files = &mesh.BundleConfig{}
		err = json.Unmarshal(b, files)
	}
	if err != nil {
		return "", nil, fmt.Errorf("read the list of files of %s: %w", shortDigest(digest), err)
	}
	return st.Files, files, nil
}

// OwnChanged says that what Config.Own observes has changed.
func (s *Supervisor) OwnChanged() { s.notify() }

// own is the host's own resource as observed, nil when it is not declared.
func (s *Supervisor) own(decl *mesh.Declaration) (v *hostapi.ResourceStatus, settled bool) {
	if s.cfg.Own == nil || decl == nil {
		return nil, true
	}
	d := decl.Host()
	st, settled := s.cfg.Own.Observe(d)
	if d == nil {
		return nil, settled
	}
	return &st, settled
}
