package mesh

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every example of how to write a module is one that a node would take.
func TestModuleExamples(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(readDoc(t, "module.md"), -1)
	kinds := map[Kind]bool{}
	for _, b := range blocks {
		m, err := DecodeManifest(strings.NewReader(b[1]))
		if err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
		for _, r := range m.Resources {
			kinds[r.Type] = true
		}
	}
	if len(kinds) != 4 {
		t.Errorf("the examples show %v only", kinds)
	}
}

// The table of fields in host.md has all of them, and the kinds that may have each.
func TestFieldTable(t *testing.T) {
	doc := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| ((?:`[a-zA-Z\\[\\].]+` )+)\\| ([PCVF]*) ?\\| ").FindAllStringSubmatch(readDoc(t, "host.md"), -1) {
		for _, name := range strings.Fields(m[1]) {
			doc[strings.Trim(name, "`")] = m[2]
		}
	}
	never := []string{"volumes[].file", "files[].volume", "files[].readOnly"} // a Mount has them, its list does not
	kinds := map[string]Kind{"P": KindProcess, "C": KindContainer, "V": KindVolume, "F": KindFile}
	var walk func(prefix string, typ reflect.Type, index []int)
	walk = func(prefix string, typ reflect.Type, index []int) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			name = prefix + name
			if slices.Contains(never, name) {
				continue
			}
			want, ok := doc[name]
			if !ok {
				t.Errorf("host.md says nothing of %s", name)
				continue
			}
			delete(doc, name)
			top := index
			if top == nil {
				top = []int{i}
			}
			for letter, kind := range kinds {
				r := Resource{Type: kind}
				fill(reflect.ValueOf(&r).Elem().FieldByIndex(top))
				r.Type = kind
				var p problems
				r.validateFields(&p, "r")
				refused := p.err() != nil || name == "digest" || name == "source"
				if refused == strings.Contains(want, letter) {
					t.Errorf("host.md gives %s to %q, and a %s has it: %t", name, want, kind, !refused)
				}
			}
			switch inner := f.Type; {
			case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
				walk(name+"[].", inner.Elem(), top)
			case inner.Kind() == reflect.Pointer:
				walk(name+".", inner.Elem(), top)
			case inner.Kind() == reflect.Struct:
				walk(name+".", inner, top)
			}
		}
	}
	walk("", reflect.TypeFor[Resource](), nil)
	for name := range doc {
		t.Errorf("host.md has a field %s that is none", name)
	}
}

// module.md has a row of every field of a manifest and of no other; what `ready` has it refers to `health` for.
func TestManifestFields(t *testing.T) {
	said := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z\\[\\].]+)` \\| .* \\| .* \\|.*\\|$").FindAllStringSubmatch(readDoc(t, "module.md"), -1) {
		said[m[1]] = true
	}
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			name = prefix + name
			if strings.HasSuffix(name, "volumes[].file") || strings.HasSuffix(name, "files[].volume") {
				continue // a Mount has them, its list does not
			}
			if !said[name] {
				t.Errorf("module.md says nothing of %s", name)
			}
			delete(said, name)
			switch inner := f.Type; {
			case strings.HasSuffix(name, ".ready"):
			case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
				walk(name+"[].", inner.Elem())
			case inner.Kind() == reflect.Pointer:
				walk(name+".", inner.Elem())
			case inner.Kind() == reflect.Struct:
				walk(name+".", inner)
			}
		}
	}
	walk("", reflect.TypeFor[Manifest]())
	for name := range said {
		t.Errorf("module.md has a field %s that is none", name)
	}
	page := readDoc(t, "module.md")
	for _, p := range slices.Concat(hostPaths(), rootPaths()) {
		if p = strings.TrimPrefix(p, "/etc/"); !strings.Contains(page, "`"+p+"`") && !strings.Contains(page, "`/etc/"+p+"`") {
			t.Errorf("module.md does not say that %s is no place to mount on", p)
		}
	}
}

// fill sets v, and in a struct its first field, to something.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("x"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		fill(v.Field(0))
	default:
		panic("no value for " + v.Type().String())
	}
}
