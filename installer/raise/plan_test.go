package raise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/mesh"
)

// TestShippedModules plans a raise from the modules that ship in the seed.
func TestShippedModules(t *testing.T) {
	files, err := filepath.Glob("../../images/modules/*/module.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no modules: %v", err)
	}
	var manifests []mesh.Manifest
	var entries []mesh.SeedEntry
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := mesh.DecodeManifest(f)
		f.Close()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m.Module == "host" {
			continue // it is pushed where another host than the release's is to run, and is in no seed
		}
		manifests = append(manifests, m)
		for i := range m.Resources {
			if ref := m.Resources[i].Artifact(); !ref.IsZero() {
				entries = append(entries, mesh.SeedEntry{Ref: ref, Arch: "amd64", Digest: "sha256:" + strings.Repeat("0", 64)})
			}
		}
	}
	p, err := newPlan(manifests, nil, entries, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, m := range p.modules {
		order = append(order, m.manifest.Module)
	}
	if diff := cmp.Diff([]string{"registry", "broker", "controller", "builder", "catalogue", "vault"}, order); diff != "" {
		t.Error(diff)
	}
	d := nextDeclaration(nil, mesh.Membership{Mesh: "home", Node: "alpha"}, p, moduleRegistry, moduleBroker, moduleController)
	if err := d.Validate(); err != nil {
		t.Errorf("the declaration of step 6: %v", err)
	}
	if d.Version != (mesh.Version{Revision: 1}) {
		t.Errorf("its version: %v", d.Version)
	}
	if _, err := newPlan(manifests, nil, entries, "arm64"); err == nil || !strings.Contains(err.Error(), "for arm64") {
		t.Errorf("another architecture: %v", err)
	}
}

// TestTemporary: environment, account, volumes and files are the declared manifest's, how it starts is the seed's.
func TestTemporary(t *testing.T) {
	entries, manifests := testSeed()
	declared := containerController()
	declared.Resources = append(declared.Resources, mesh.Resource{ID: "extra", Type: mesh.KindFile, Content: "x"},
		mesh.Resource{ID: "other", Type: mesh.KindProcess, Bundle: "mesh-vault"})
	s := &declared.Resources[1]
	s.Args, s.Env, s.Account = []string{"broken"}, map[string]string{"C": "d"}, "keeper"
	s.Files = []mesh.Mount{{File: "extra", Path: "/etc/extra"}}
	p, err := newPlan(manifests, []mesh.Manifest{declared}, entries, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	var got mesh.Resource
	keys := []string{}
	for i, r := range p.declared(moduleController) {
		keys = append(keys, r.Key())
		if r.ID == controllerID {
			got = p.temporary[i].Resource
		}
	}
	if diff := cmp.Diff([]string{"controller/state", "controller/extra", "controller/server"}, keys); diff != "" {
		t.Error(diff)
	}
	want := mesh.Resource{
		ID: "server", Type: mesh.KindProcess, Bundle: "mesh-controller", Source: mesh.SourceSeed,
		Digest: digestOf(entries, mesh.Ref{Kind: mesh.ArtifactBundle, Name: "mesh-controller"}, "amd64"),
		Args:   []string{"serve"}, Env: map[string]string{"C": "d"}, Account: "keeper", Seats: []string{"controller"},
		Volumes: s.Volumes, Files: s.Files,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlanRefuses(t *testing.T) {
	tests := map[string]struct {
		request mesh.Manifest
		want    string
	}{
		"no controller process": {mesh.Manifest{Module: "controller", Resources: []mesh.Resource{{ID: "main", Type: mesh.KindProcess, Bundle: "mesh-controller", Seats: []string{"controller"}}}},
			`no process or container with the id "server"`},
		"no seat":         {mesh.Manifest{Module: "broker"}, "holds the seat broker"},
		"unknown bundle":  {mesh.Manifest{Module: "web", Resources: []mesh.Resource{{ID: "server", Type: mesh.KindProcess, Bundle: "web"}}}, "web/server names bundle/web"},
		"invalid":         {mesh.Manifest{Module: "web", Resources: []mesh.Resource{{ID: "x", Type: "proces"}}}, "module web: "},
		"a digest in it":  {mesh.Manifest{Module: "web", Resources: []mesh.Resource{{ID: "x", Type: mesh.KindVolume, Digest: "sha256:0"}}}, "digest"},
		"root as account": {mesh.Manifest{Module: "web", Resources: []mesh.Resource{{ID: "x", Type: mesh.KindProcess, Bundle: "mesh-vault", Account: "root"}}}, "root"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			entries, manifests := testSeed()
			_, err := newPlan(manifests, []mesh.Manifest{test.request}, entries, "amd64")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
