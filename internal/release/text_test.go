package release

import (
	"crypto/ed25519"
	"reflect"
	"strings"
	"testing"

	"kingpost/internal/mesh"
)

var testHash = strings.Repeat("0123456789abcdef", 4)

func TestCmdline(t *testing.T) {
	c, err := NewCmdline("amd64", testHash, 4096*77, "nosmt", `foo="a b"`)
	if err != nil {
		t.Fatal(err)
	}
	want := "kingpost.root=" + testHash + " kingpost.hashoffset=315392 console=tty0 console=ttyS0,115200 gpt panic=10 quiet loglevel=3 transparent_hugepage=madvise nosmt foo=\"a b\""
	if c.String() != want {
		t.Errorf("got %q", c)
	}
	got, err := ParseCmdline(want + "\n")
	if err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v, %v", got, err)
	}
	r, err := RescueCmdline("arm64")
	if err != nil || r.String() != "kingpost.rescue=1 console=tty0 console=ttyAMA0,115200 gpt panic=10 quiet loglevel=3 transparent_hugepage=madvise" {
		t.Errorf("got %q, %v", r, err)
	}
	for name, extra := range map[string]string{"two words": "a b", "ours": "kingpost.root=x", "line end": "a\nb", "nothing": "", "open quote": `a="b`, "not ASCII": "ä", "too long": strings.Repeat("x", 2048)} {
		if _, err := NewCmdline("amd64", testHash, 4096, extra); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestParseCmdline(t *testing.T) {
	root := "kingpost.root=" + testHash
	for in, ok := range map[string]bool{
		"":                                                   true,
		"quiet splash":                                       true,
		root + " kingpost.hashoffset=4096":                   true,
		"  a=\"x y\"\t" + "kingpost.rescue=1":                true,
		root:                                                 false,
		"kingpost.hashoffset=4096":                           false,
		root + " kingpost.hashoffset=4095":                   false,
		root + " kingpost.hashoffset=-4096":                  false,
		root + " kingpost.hashoffset=+4096":                  false,
		root + " kingpost.hashoffset=4096 " + root:           false,
		root + "0 kingpost.hashoffset=4096":                  false,
		"kingpost.root= kingpost.hashoffset=4096":            false,
		root + " kingpost.hashoffset=4096 kingpost.rescue=1": false,
		"kingpost.rescue":                                    false,
		"kingpost.rescue=0":                                  false,
		"kingpost.root=" + strings.ToUpper(testHash) + " kingpost.hashoffset=4096": false,
	} {
		if _, err := ParseCmdline(in); (err == nil) != ok {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func FuzzParseCmdline(f *testing.F) {
	f.Add("kingpost.root=" + testHash + " kingpost.hashoffset=4096 a=\"b c\" quiet")
	f.Add("kingpost.rescue=1")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCmdline(s)
		if err != nil {
			return
		}
		again, err := ParseCmdline(c.String())
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Errorf("%q reads as %+v, and that again as %+v, %v", s, c, again, err)
		}
	})
}

func TestBootEntry(t *testing.T) {
	e := BootEntry{ID: "0.1.0", Title: "Kingpost node", Version: "0.1.0", SortKey: SortKey, EFI: "/EFI/kingpost/x.efi"}
	for name, c := range map[string]*Counter{"0.1.0.conf": nil, "0.1.0+3.conf": {3, 0}, "0.1.0+2-1.conf": {2, 1}, "0.1.0+0-3.conf": {0, 3}} {
		e.Counter = c
		if e.FileName() != name {
			t.Errorf("name is %q, want %q", e.FileName(), name)
		}
		got, err := ParseBootEntry(name, e.Render())
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if got.Bad() != (c != nil && c.Left == 0) {
			t.Errorf("%s: Bad is %v", name, got.Bad())
		}
	}
	got, err := ParseBootEntry("x.conf", []byte("# note\r\n\ntitle\t A  b \r\nefi /e\noptions quiet\n"))
	if err != nil || got.Title != "A  b" || got.EFI != "/e" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseBootEntryRefuses(t *testing.T) {
	for name, c := range map[string][2]string{
		"no .conf":      {"x", "efi /e"},
		"no ID":         {".conf", "efi /e"},
		"hidden":        {".x.conf", "efi /e"},
		"path":          {"a/b.conf", "efi /e"},
		"counter":       {"x+.conf", "efi /e"},
		"counter word":  {"x+a.conf", "efi /e"},
		"counter sign":  {"x+-1.conf", "efi /e"},
		"counter twice": {"x+1+2.conf", "efi /e"},
		"counter large": {"x+99999999999999999999.conf", "efi /e"},
		"no program":    {"x.conf", "title t"},
		"key twice":     {"x.conf", "efi /e\nefi /f"},
		"relative":      {"x.conf", "efi e"},
		"dotdot":        {"x.conf", "efi /../e"},
		"backslash":     {"x.conf", `efi /a\e`},
		"large":         {"x.conf", "efi /e\n" + strings.Repeat("#\n", 40<<10)},
	} {
		if e, err := ParseBootEntry(c[0], []byte(c[1])); err == nil {
			t.Errorf("%s: accepted as %+v", name, e)
		}
	}
}

func FuzzParseBootEntry(f *testing.F) {
	f.Add("0.1.0+2-1.conf", []byte("title a\nversion 1\nsort-key k\nefi /EFI/kingpost/x.efi\n"))
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		e, err := ParseBootEntry(name, b)
		if err != nil {
			return
		}
		again, err := ParseBootEntry(e.FileName(), e.Render())
		if err != nil || !reflect.DeepEqual(e, again) {
			t.Errorf("%+v is written and read back as %+v, %v", e, again, err)
		}
	})
}

func testClaim(t testing.TB) string {
	t.Helper()
	s, err := FormatClaim(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseNodeConfig(t *testing.T) {
	off := false
	for name, c := range map[string]struct {
		in   string
		want mesh.NodeConfig
	}{
		"nothing":  {"", mesh.NodeConfig{}},
		"comments": {"# nothing yet\n", mesh.NodeConfig{}},
		"all": {"hostname: alpha\nnetwork: { dhcp: false }\nclaim: " + testClaim(t) + "\ninstall: { disk: { serial: S3Z } }\nmesh: { raise: home }\n",
			mesh.NodeConfig{Hostname: "alpha", Network: mesh.NetworkConfig{DHCP: &off}, Claim: testClaim(t),
				Install: &mesh.InstallConfig{Disk: mesh.DiskSelector{Serial: "S3Z"}}, Mesh: mesh.MeshConfig{Raise: "home"}}},
		"disk": {"install: { wipe: true, booted: true, disk: { serial: \"0123\", wwn: naa.5, path: /dev/sda, size: '> 1GB', model: x, bus: ata, rotational: false } }\n",
			mesh.NodeConfig{Install: &mesh.InstallConfig{Wipe: true, Booted: true, Disk: mesh.DiskSelector{Serial: "0123", WWN: "naa.5", Path: "/dev/sda", Size: "> 1GB", Model: "x", Bus: "ata", Rotational: &off}}}},
		"join": {"mesh:\n  join:\n    token: abc.def\n", mesh.NodeConfig{Mesh: mesh.MeshConfig{Join: &mesh.JoinConfig{Token: "abc.def"}}}},
	} {
		got, err := ParseNodeConfig([]byte(c.in))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestParseNodeConfigRefuses(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"unknown key":       {"hostname: a\nhostnam: b\n", "[2:1]"},
		"inner unknown key": {"network: { dhpc: true }\n", "[1:12]"},
		"key twice":         {"hostname: a\nhostname: b\n", "[2:1]"},
		"wrong type":        {"network: yes please\n", "[1:"},
		"hostname":          {"# c\nhostname: Al_pha\n", "[2:11] hostname"},
		"claim kind":        {"claim: rsa:AAAA\n", "[1:8] claim"},
		"claim base64":      {"claim: ed25519:!!\n", "claim"},
		"claim no key":      {"claim: ed25519:AAAA\n", "claim"},
		"both":              {"mesh:\n  raise: home\n  join: { token: t }\n", "exclude each other"},
		"raise name":        {"mesh: { raise: Home! }\n", "[1:16] mesh.raise"},
		"no token":          {"mesh: { join: {} }\n", "token is missing"},
		"token":             {"mesh: { join: { token: \"a b\" } }\n", "no token"},
		"no disk":           {"install: { disk: {} }\n", "names no disk"},
		"octal serial":      {"install: { disk: { serial: 0123 } }\n", "[1:28] text is wanted here"},
		"no size":           {"install: { disk: { size: large } }\n", "[1:26] install.disk.size"},
		"no bus":            {"install: { disk: { bus: isa } }\n", "[1:25] install.disk.bus"},
		"no path":           {"install: { disk: { path: sda } }\n", "install.disk.path"},
		"a link":            {"install: { disk: { path: /dev/disk/by-id/x } }\n", "set serial or wwn"},
		"only and more":     {"install: { disk: { only: true, bus: ata } }\n", "no other key"},
		"two documents":     {"hostname: a\n---\nhostname: b\n", "second document"},
		"no YAML":           {"hostname: [\n", ""},
		"large":             {strings.Repeat("# c\n", 20<<10), "at most"},
	} {
		_, err := ParseNodeConfig([]byte(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "node.yaml: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseNodeConfig([]byte("mesh: { join: { token: \"geheim x\" } }\n")); strings.Contains(err.Error(), "geheim") {
		t.Errorf("the error shows the token: %v", err)
	}
}

func FuzzParseNodeConfig(f *testing.F) {
	f.Add([]byte(networkExample))
	f.Add([]byte("hostname: alpha\nnetwork: { dhcp: true }\nmesh: { raise: home }\n"))
	f.Add([]byte("a: &x [*x, *x]\nclaim: " + testClaim(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseNodeConfig(b); err == nil && c.Hostname != "" && mesh.CheckName(c.Hostname) != nil {
			t.Errorf("accepted the name %q", c.Hostname)
		}
	})
}
