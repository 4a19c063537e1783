package main

import (
	"crypto/ed25519"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/internal/mesh/tlsid"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"8GiB": 8 << 30, "512 MiB": 512 << 20, "4096": 4096, "1TiB": 1 << 40} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "GiB", "-1GiB", "8GB", "9999999999GiB", "0"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q was read as %d", s, got)
		}
	}
}

func TestVMConfig(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	claim := tlsid.FormatPublicKey(key.Public().(ed25519.PublicKey))
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	private, public := write("key.pem", string(tlsid.MarshalPrivateKey(key))), write("key.pub", claim+"\n")
	for name, f := range map[string]vmFlags{"private": {claim: private, raise: "home"}, "public": {claim: public, raise: "home"}} {
		b, err := f.nodeConfig()
		if err != nil {
			t.Fatal(err)
		}
		if want := "claim: " + claim + "\nmesh:\n  raise: home\n"; string(b) != want {
			t.Errorf("%s: node.yaml is %q, wanted %q", name, b, want)
		}
	}
	for name, f := range map[string]vmFlags{
		"raise without a claim": {raise: "home"},
		"config and claim":      {config: public, claim: public},
		"no key":                {claim: write("junk", "junk")},
		"no file":               {claim: filepath.Join(dir, "nowhere")},
	} {
		if b, err := f.nodeConfig(); err == nil {
			t.Errorf("%s: accepted as %q", name, b)
		}
	}
}

func TestVMUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"no image":     {"vm"},
		"bad size":     {"vm", "x", "--disk-size", "many"},
		"bad forward":  {"vm", "x", "--forward", "a:b"},
		"raise alone":  {"vm", "x", "--raise", "home"},
		"unknown flag": {"vm", "x", "--colour"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := newVMCommand()
			cmd.SetArgs(args[1:])
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			if err := cmd.ExecuteContext(t.Context()); err == nil {
				t.Error("accepted")
			}
		})
	}
	cmd := newVMCommand()
	cmd.SetArgs([]string{filepath.Join(t.TempDir(), "nowhere.img")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "kingpost build") {
		t.Errorf("a missing image: %v", err)
	}
}

func TestVMDisk(t *testing.T) {
	dir := t.TempDir()
	image, link, elsewhere := filepath.Join(dir, "disk.img"), filepath.Join(dir, "link.img"), filepath.Join(t.TempDir(), "a.img")
	if err := errors.Join(os.WriteFile(image, make([]byte, 1<<20), 0o600), os.Symlink(image, link)); err != nil {
		t.Fatal(err)
	}
	if err := checkImages(image, ""); err == nil || !strings.Contains(err.Error(), image) {
		t.Errorf("zeros as an image: %v", err)
	}
	beside := filepath.Join(dir, "other.img")
	for disk, refused := range map[string]bool{"": false, elsewhere: false, beside: false, image: true, link: true} {
		if err := checkApart(disk, image); (err != nil) != refused {
			t.Errorf("%q: %v", disk, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "release.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkApart(beside, image); err == nil {
		t.Error("a disk in the folder of a build was accepted")
	}
}
