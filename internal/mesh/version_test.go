package mesh

import (
	"strings"
	"testing"
)

func TestModuleVersion(t *testing.T) {
	for _, v := range []string{"1", "1.0.0", "v2_rc-1", "_", strings.Repeat("a", maxModuleVersion)} {
		if err := checkModuleVersion(v); err != nil {
			t.Error(err)
		}
	}
	for _, v := range []string{"../1", "?x=1", "%2e%2e", "a b", "ü", "1+2", "-1", ".1", "a/b", "a\n", strings.Repeat("a", maxModuleVersion+1)} {
		m := Manifest{Module: "web", Version: v}
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), "version: ") {
			t.Errorf("%q: %v", v, err)
		}
	}
}
