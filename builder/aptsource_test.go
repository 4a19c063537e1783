package builder

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSuiteSources(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string
		err   string
	}{
		{"stanzas", map[string]string{
			"apt/sources.list.d/debian.sources": "Types: deb deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates bookworm-backports\nComponents: main contrib\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n# old\nTypes: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n",
			"apt/sources.list.d/other.sources":  "Types: deb\nURIs: https://other.example\nSuites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/other.gpg\n",
			"apt/sources.list.d/off.sources":    "Enabled: no\nTypes: deb\nURIs: https://off.example\nSuites: bookworm\nComponents: main\n",
		}, []string{
			"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian trixie main non-free-firmware",
			"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian trixie-updates main non-free-firmware",
			"deb http://mirror.example/debian-security trixie-security main non-free-firmware",
		}, ""},
		{"lines", map[string]string{
			"apt/sources.list":             "# x\ndeb http://mirror.example/debian bookworm main # y\ndeb-src http://mirror.example/debian bookworm main\ndeb [ trusted=yes ] http://m2.example bookworm main\n",
			"apt/sources.list.d/vend.list": "deb https://vendor.example/apt cloud-bookworm main\ndeb https://vendor.example bookworm stable\n",
		}, []string{"deb http://mirror.example/debian trixie main non-free-firmware", "deb [trusted=yes] http://m2.example trixie main non-free-firmware"}, ""},
		{"none", map[string]string{}, nil, "--mirror"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := files(c.files)
			fsys["os-release"] = files(map[string]string{"x": "ID=debian\nVERSION_CODENAME=bookworm\n"})["x"]
			got, err := suiteSources(fsys, "trixie")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, s := range got {
				lines = append(lines, s.line())
			}
			if d := cmp.Diff(c.want, lines); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDependNames(t *testing.T) {
	got := dependNames("libc6 (>= 2.34), libseccomp2 (>= 2.5.0) | other, python3:any, ")
	if d := cmp.Diff([]string{"libc6", "libseccomp2", "python3"}, got); d != "" {
		t.Error(d)
	}
}
