package builder

import (
	"slices"
	"strings"
	"testing"

	"kingpost/internal/mesh"
)

// Every account and group that the image brings is one that no manifest may name.
func TestSystemAccountsAreKnown(t *testing.T) {
	etc := etcFiles(&Recipe{}, mesh.ReleaseInfo{})
	for _, file := range []string{"passwd", "group"} {
		for line := range strings.Lines(etc[file]) {
			name, _, _ := strings.Cut(line, ":")
			if !slices.Contains(mesh.SystemAccounts(), name) {
				t.Errorf("%s has %s, which mesh.SystemAccounts does not", file, name)
			}
		}
	}
}
