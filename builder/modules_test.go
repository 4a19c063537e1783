package builder

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestPlanSeedRefuses(t *testing.T) {
	process := func(module, id, bundle, more string) string {
		return `{"module":"` + module + `","resources":[{"id":"` + id + `","type":"process","bundle":"` + bundle + `"` + more + `}]}`
	}
	base := map[string]string{"cmd/mesh-a/main.go": "package main"}
	for _, c := range []struct {
		name    string
		modules map[string]string
		want    string
	}{
		{"whole", map[string]string{"a": process("a", "server", "mesh-a", "")}, ""},
		{"missing module", map[string]string{"a": ""}, "images/modules/a/module.json is missing"},
		{"missing bundle", map[string]string{"a": process("a", "server", "mesh-b", "")}, "nothing makes the bundle mesh-b"},
		{"missing image", map[string]string{"a": `{"module":"a","resources":[{"id":"x","type":"container","name":"redis"}]}`}, "nothing makes the image redis"},
		{"other name", map[string]string{"a": process("b", "server", "mesh-a", "")}, `calls itself "b"`},
		{"unknown field", map[string]string{"a": process("a", "server", "mesh-a", `,"colour":1`)}, "colour"},
		{"after nothing", map[string]string{"a": process("a", "server", "mesh-a", `,"after":["z/server"]`)}, "z/server, which no module"},
		{"circle", map[string]string{
			"a": process("a", "server", "mesh-a", `,"after":["b/server"]`), "b": process("b", "server", "mesh-a", `,"after":["a/server"]`),
		}, "a/server -> b/server -> a/server"},
		{"image.yaml without program", map[string]string{"a": `{"module":"a","resources":[{"id":"x","type":"container","name":"third"}]}`}, "program"},
		{"version of no module", map[string]string{"a": `{"module":"a","resources":[{"id":"x","type":"container","name":"old"}]}`}, "version: is 1.0.0, and images/third-party/old/go.mod"},
		{"option for a package", map[string]string{"a": `{"module":"a","resources":[{"id":"x","type":"container","name":"option"}]}`}, "no Go package"},
		{"no Go module", map[string]string{"a": `{"module":"a","resources":[{"id":"x","type":"container","name":"no-module"}]}`}, "no-module/go.mod"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := files(base)
			fsys["images/third-party/third/image.yaml"] = &fstest.MapFile{Data: []byte("kind: third-party-image\nversion: 1.0.0\npackage: .\n")}
			for n, image := range map[string]string{"old": "version: 1.0.0\npackage: .", "option": "version: 2.0.0\npackage: -x", "no-module": "version: 2.0.0\npackage: ."} {
				fsys["images/third-party/"+n+"/image.yaml"] = &fstest.MapFile{Data: []byte("kind: third-party-image\nprogram: x\n" + image + "\n")}
				if n != "no-module" {
					fsys["images/third-party/"+n+"/go.mod"] = &fstest.MapFile{Data: []byte("module x\n\nrequire example.com/x v2.0.0\n")}
				}
			}
			var names []string
			for _, n := range []string{"a", "b"} {
				if raw, ok := c.modules[n]; ok {
					names = append(names, n)
					if raw != "" {
						fsys["images/modules/"+n+"/module.json"] = &fstest.MapFile{Data: []byte(raw)}
					}
				}
			}
			_, err := planSeed(fsys, names)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}
