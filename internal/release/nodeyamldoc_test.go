package release

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"kingpost/internal/mesh"
)

// The table of docs/node-yaml.md has every key of node.yaml and no other, and its example is one that a node takes.
func TestNodeYAMLDoc(t *testing.T) {
	b, err := os.ReadFile("../../docs/node-yaml.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(b, -1)
	if len(examples) == 0 {
		t.Error("there is no example")
	}
	for _, e := range examples {
		if _, err := ParseNodeConfig(e[1]); err != nil {
			t.Errorf("%v in\n%s", err, e[1])
		}
	}
	doc := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z.\\[\\]]+)` \\| ").FindAllSubmatch(b, -1) {
		if doc[string(m[1])] {
			t.Errorf("%s is there twice", m[1])
		}
		doc[string(m[1])] = true
	}
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			key := prefix + tag
			if !doc[key] {
				t.Errorf("docs/node-yaml.md says nothing of %s", key)
			}
			delete(doc, key)
			inner, dot := f.Type, "."
			if inner.Kind() == reflect.Slice {
				inner, dot = inner.Elem(), "[]."
			}
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(key+dot, inner)
			}
		}
	}
	walk("", reflect.TypeFor[mesh.NodeConfig]())
	for key := range doc {
		t.Errorf("docs/node-yaml.md has a key %s that is none", key)
	}
}
