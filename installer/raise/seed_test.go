package raise

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

func testKey() ed25519.PublicKey {
	return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)
}

var testFingerprint = tlsid.Fingerprint(testKey())

// testSeed is a seed as a build makes it: images for the third-party servers, bundle and image for each
// component, a module artifact for every manifest.
func testSeed() ([]mesh.SeedEntry, []mesh.Manifest) {
	var entries []mesh.SeedEntry
	add := func(kind mesh.ArtifactKind, name string) {
		tag, arch := "0.1.0-amd64", "amd64"
		if kind == mesh.ArtifactModule {
			tag, arch = "0.1.0", ""
		}
		entries = append(entries, mesh.SeedEntry{
			Ref: mesh.Ref{Kind: kind, Name: name}, Tag: tag, Arch: arch,
			Digest: fmt.Sprintf("sha256:%064x", len(entries)+1), Size: 1 << 20,
		})
	}
	manifests := []mesh.Manifest{
		{Module: "registry", Resources: []mesh.Resource{
			{ID: "data", Type: mesh.KindVolume},
			{ID: "server", Type: mesh.KindContainer, Name: "registry", Network: "host", Seats: []string{"store", "registry"}},
		}},
		{Module: "broker", Resources: []mesh.Resource{
			{ID: "server", Type: mesh.KindContainer, Name: "broker", Network: "host", Seats: []string{"broker"}},
		}},
		testController(),
	}
	for _, m := range manifests[:2] {
		add(mesh.ArtifactImage, m.Module)
	}
	for _, name := range []string{"controller", "catalogue", "builder", "vault"} {
		add(mesh.ArtifactBundle, "mesh-"+name)
		add(mesh.ArtifactImage, "mesh-"+name)
		if name != "controller" {
			manifests = append(manifests, mesh.Manifest{Module: name, Resources: []mesh.Resource{
				{ID: "server", Type: mesh.KindProcess, Bundle: "mesh-" + name, Seats: []string{name}},
			}})
		}
	}
	for _, m := range manifests {
		add(mesh.ArtifactModule, m.Module)
	}
	return entries, manifests
}

func testController() mesh.Manifest {
	return mesh.Manifest{Module: "controller", Resources: []mesh.Resource{
		{ID: "state", Type: mesh.KindVolume},
		{ID: "server", Type: mesh.KindProcess, Bundle: "mesh-controller", Args: []string{"serve"},
			Env: map[string]string{"A": "b"}, Seats: []string{"controller"},
			Volumes: []mesh.Mount{{Volume: "state", Path: "/var/lib/controller"}}},
	}}
}

// containerController is the same in the container form.
func containerController() mesh.Manifest {
	m := testController()
	r := &m.Resources[1]
	r.Type, r.Bundle, r.Name, r.Network = mesh.KindContainer, "", "mesh-controller", "host"
	return m
}

func sortedModules[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
