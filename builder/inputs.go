package builder

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// FindRepository walks up from a recipe's folder to the sources that it belongs to: the module kingpost.
func FindRepository(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := start; ; d = filepath.Dir(d) {
		raw, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && isOurModule(string(raw)) {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside Kingpost's sources: a recipe is built from the sources around it", start)
		}
	}
}

func isOurModule(gomod string) bool {
	for line := range strings.Lines(gomod) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "module" {
			return f[1] == "kingpost"
		}
	}
	return false
}

// sumFiles binds each go.sum of the repository that a build reads to its digest.
func sumFiles(repo fs.FS, plan *seedPlan) (map[string]string, error) {
	names := []string{"go.sum"}
	for n := range plan.thirdParty {
		names = append(names, path.Join(thirdPartyDir, n, "go.sum"))
	}
	out := map[string]string{}
	for _, n := range names {
		raw, err := fs.ReadFile(repo, n)
		if err != nil {
			return nil, fmt.Errorf("read the digests of the Go modules: %w", err)
		}
		out[n] = "sha256:" + hashBytes(raw)
	}
	return out, nil
}

// checkToolchain checks toolchain and modules against the lock.
func (l *Lock) checkToolchain(goVersion string, sums map[string]string, relock string) error {
	var errs []error
	if l.Go != goVersion {
		errs = append(errs, fmt.Errorf("it is for %s, go is %s", l.Go, goVersion))
	}
	for _, n := range slices.Sorted(maps.Keys(sums)) {
		switch l.Modules[n] {
		case sums[n]:
		case "":
			errs = append(errs, fmt.Errorf("it does not know %s", n))
		default:
			errs = append(errs, fmt.Errorf("%s has changed since it was written", n))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the lock does not match:\n%w\nwhen the change is meant: %s", err, relock)
	}
	return nil
}

// inputsDigest is the digest of all that went into a build: as long as it is the same, so must the output be.
func inputsDigest(r *Recipe, l *Lock, arch string, plan *seedPlan, programs map[string]string) (string, error) {
	same := *r
	same.Outputs = nil // which of a release's outputs are made changes none of them
	recipe, err := yaml.Marshal(&same)
	if err != nil {
		return "", err
	}
	parts := []string{string(recipe), arch, l.Go}
	for _, d := range l.Debs[arch] {
		parts = append(parts, d.String(), d.SHA256)
	}
	for _, m := range plan.modules {
		parts = append(parts, string(m.Raw))
	}
	for _, n := range slices.Sorted(maps.Keys(plan.thirdParty)) {
		parts = append(parts, n, fmt.Sprintf("%+v", plan.thirdParty[n]))
	}
	for _, n := range slices.Sorted(maps.Keys(programs)) {
		parts = append(parts, n, programs[n])
	}
	return "sha256:" + hashStrings(parts...), nil
}
