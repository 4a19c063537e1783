package node

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/release"
)

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node")
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir)
	if err != nil || b.ID != a.ID || b.Fingerprint != a.Fingerprint || !b.Key.Equal(a.Key) {
		t.Fatalf("another node at the second boot: %v", err)
	}
	if len(a.ID) != 32 || mesh.CheckName(DefaultName(a.ID)) != nil {
		t.Errorf("id %q, name %q", a.ID, DefaultName(a.ID))
	}
	for _, f := range []string{"", fileKey, fileID} {
		fi, err := os.Stat(filepath.Join(dir, f))
		if err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", f, fi.Mode(), err)
		}
	}
	for _, tc := range []struct{ file, content string }{{fileKey, "x"}, {fileKey, ""}, {fileID, "xyz"}, {fileID, ""}} {
		old, _ := os.ReadFile(filepath.Join(dir, tc.file))
		os.WriteFile(filepath.Join(dir, tc.file), []byte(tc.content), 0o600)
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "remove") {
			t.Errorf("%s with %q: %v", tc.file, tc.content, err)
		}
		os.WriteFile(filepath.Join(dir, tc.file), old, 0o600)
	}
	if c, err := Open(dir); err != nil || c.ID != a.ID {
		t.Errorf("a damaged file was replaced: %v", err)
	}
}

func claim(t *testing.T) string {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tlsid.FormatPublicKey(pub)
}

func TestSettings(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "node.yaml")
	load := func(t *testing.T, content string) Settings {
		t.Helper()
		os.Remove(path)
		if content != "" {
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Load(path, state, release.ParseNodeConfig)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	mine, other := claim(t), claim(t)
	t.Run("no file", func(t *testing.T) {
		if s := load(t, ""); s.Key != nil || len(s.Warnings) != 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("claimed", func(t *testing.T) {
		s := load(t, "hostname: alpha\nclaim: "+mine+"\nmesh: { raise: home }\n")
		if s.Key == nil || s.Hostname != "alpha" || s.NodeConfig.Mesh.Raise != "home" || len(s.Warnings) != 0 {
			t.Errorf("%+v", s)
		}
	})
	for name, content := range map[string]string{
		"unknown key": "hostnam: alpha\n",
		"no YAML":     "\t{{{",
		"bad name":    "hostname: Alpha Beta\n",
		"bad claim":   "claim: ed25519:AAAA\n",
		"too large":   "# " + strings.Repeat("x", mesh.MaxNodeConfig) + "\n",
		"binary":      "\x00\xff\xfe",
	} {
		t.Run(name, func(t *testing.T) {
			s := load(t, content)
			if len(s.Warnings) == 0 || s.Key != nil || s.Hostname != "" {
				t.Errorf("%+v", s)
			}
		})
	}
	t.Run("frozen", func(t *testing.T) {
		s := load(t, "claim: "+mine+"\nmesh: { raise: home }\n")
		for range 2 {
			if err := s.Freeze(state); err != nil {
				t.Fatal(err)
			}
		}
		if s := load(t, "claim: "+mine+"\nmesh: { raise: home }\nhostname: beta\n"); len(s.Warnings) != 0 || s.Hostname != "beta" {
			t.Errorf("unchanged: %+v", s.Warnings)
		}
		for _, content := range []string{"claim: " + other + "\nmesh: { raise: away }\n", ""} {
			s := load(t, content)
			if s.Claim != mine || s.NodeConfig.Mesh.Raise != "home" || len(s.Warnings) != 2 {
				t.Errorf("an edit counts: %+v, %q", s.NodeConfig, s.Warnings)
			}
		}
		if err := os.WriteFile(filepath.Join(state, fileFrozen), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path, state, release.ParseNodeConfig); err == nil {
			t.Error("a damaged freeze thaws the node")
		}
	})
	t.Run("reset", func(t *testing.T) {
		state = t.TempDir()
		text := "hostname: alpha\nclaim: " + mine + "\nmesh: { raise: home }\n"
		void := func(r mesh.Reset) {
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(state, mesh.FileVoid), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		void(mesh.Reset{NodeConfig: Sum([]byte(text))})
		if s := load(t, text); s.Key != nil || s.Claim != "" || s.NodeConfig.Mesh.Raise != "" || s.Hostname != "alpha" || len(s.Warnings) != 1 {
			t.Errorf("the old file: %+v", s)
		}
		if s := load(t, text+"# claimed again\n"); s.Key == nil || s.NodeConfig.Mesh.Raise != "home" || len(s.Warnings) != 0 {
			t.Errorf("an edited file: %+v", s)
		}
		void(mesh.Reset{NodeConfig: Sum([]byte(text)), KeepClaim: true})
		if s := load(t, text); s.Key == nil || s.NodeConfig.Mesh.Raise != "" || len(s.Warnings) != 1 {
			t.Errorf("the claim is kept: %+v", s)
		}
		void(mesh.Reset{}) // there was no file
		if s := load(t, ""); len(s.Warnings) != 0 {
			t.Errorf("no file: %+v", s)
		}
		os.WriteFile(filepath.Join(state, mesh.FileVoid), []byte("{"), 0o600)
		if _, err := Load(path, state, release.ParseNodeConfig); err == nil {
			t.Error("a damaged record gives the node back to its old operator")
		}
		state = t.TempDir()
	})
	t.Run("unreadable", func(t *testing.T) {
		s, err := Load(dir, t.TempDir(), func([]byte) (mesh.NodeConfig, error) { return mesh.NodeConfig{}, errors.New("x") })
		if err != nil || len(s.Warnings) != 1 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
