package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kingpost/internal/host/stub"
)

// secretLimit is how long the vault has for one secret.
const secretLimit = 30 * time.Second

// secrets fetches the secrets that a start needs. Nothing runs or stops before they are here.
func (s *Supervisor) secrets(ctx context.Context, sp *spec) (map[string][]byte, error) {
	if len(sp.Secrets) == 0 {
		return nil, nil
	}
	if s.cfg.Secrets == nil {
		return nil, fmt.Errorf("%w: there is no vault here yet that could give %s its secrets", errSource, sp.Key())
	}
	out := map[string][]byte{}
	for _, x := range sp.Secrets {
		ctx, cancel := context.WithTimeout(ctx, secretLimit)
		b, err := s.cfg.Secrets(ctx, sp.Module, x.Secret, x.Version)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%w: the secret %s/%s: %w", errSource, sp.Module, x.Secret, err)
		}
		out[x.Path] = b
	}
	return out, nil
}

// secretFiles writes them where only the account reads them. The folder is below mesh.PathRun, which is memory, and goes
// with the instance.
func (l *launch) secretFiles() error {
	if len(l.sp.Secrets) == 0 {
		return nil
	}
	if err := os.Mkdir(l.dir.secrets(), 0o711); err != nil {
		return err
	}
	for i, x := range l.sp.Secrets {
		b, ok := l.st.Secrets[x.Path]
		if !ok {
			return fmt.Errorf("%w: the secret %s of %s was not fetched", errSource, x.Secret, l.sp.Key())
		}
		path := filepath.Join(l.dir.secrets(), fmt.Sprint(i))
		if err := writeOwned(path, b, l.uid, 0o400); err != nil {
			return fmt.Errorf("give %s its secret %s: %w", l.sp.Key(), x.Secret, err)
		}
		l.binds = append(l.binds, stub.Bind{From: path, To: x.Path, ReadOnly: true})
	}
	return nil
}
