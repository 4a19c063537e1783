package kmod

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"
)

// module makes an ELF file with only a .modinfo section.
func module(t testing.TB, info ...string) []byte {
	t.Helper()
	modinfo := []byte(strings.Join(info, "\x00") + "\x00")
	names := "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	head := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(64 + len(modinfo) + len(names)),
		Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 2}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	for _, v := range []any{
		head, modinfo, []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(modinfo)), Addralign: 1},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(modinfo)), Size: uint64(len(names)), Addralign: 1},
	} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func xzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	w, err := xz.NewWriter(&out)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

func folder(t testing.TB) fstest.MapFS {
	file := func(b []byte) *fstest.MapFile { return &fstest.MapFile{Data: b} }
	return fstest.MapFS{
		"modules.builtin":            file([]byte("kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio-ring.ko\n")),
		"kernel/net/virtio_net.ko":   file(module(t, "name=virtio_net", "depends=net_failover,virtio-ring", "alias=virtio:d00000001v*")),
		"kernel/net/net-failover.ko": file(module(t, "depends=failover")),
		"kernel/net/failover.ko.xz":  file(xzipped(t, module(t, "depends="))),
		"kernel/md/dm-verity.ko.zst": file(zstded(t, module(t, "depends=dm-bufio,dm-mod", "softdep=pre: sha256 nowhere post: late"))),
		"kernel/md/dm-bufio.ko":      file(module(t, "depends=dm-mod")),
		"kernel/md/dm-mod.ko":        file(module(t, "depends=", "alias=devname:mapper/control")),
		"kernel/crypto/sha256.ko":    file(module(t, "depends=", "alias=crypto-sha256")),
		"kernel/late.ko":             file(module(t, "softdep=pre: dm_verity")),
		"kernel/loop1.ko":            file(module(t, "depends=loop2")),
		"kernel/loop2.ko":            file(module(t, "depends=loop1")),
		"kernel/lost.ko":             file(module(t, "depends=gone")),
	}
}

func names(m []*Module) string {
	var out []string
	for _, m := range m {
		out = append(out, m.Name)
	}
	return strings.Join(out, " ")
}

func index(t testing.TB) *Index {
	t.Helper()
	x, err := ReadIndex(context.Background(), folder(t))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestClosureIsInLoadOrder(t *testing.T) {
	x := index(t)
	for in, want := range map[string]string{
		"virtio-net":            "failover net_failover virtio_net",
		"ext4":                  "",
		"dm_verity":             "sha256 dm_mod dm_bufio dm_verity late",
		"dm-mod dm_verity":      "dm_mod sha256 dm_bufio dm_verity late",
		"failover virtio_net":   "failover net_failover virtio_net",
		"virtio_net virtio_net": "failover net_failover virtio_net",
	} {
		got, err := x.Closure(context.Background(), strings.Fields(in)...)
		if err != nil || names(got) != want {
			t.Errorf("%s: got %q, %v, want %q", in, names(got), err, want)
		}
	}
}

func TestClosureRefuses(t *testing.T) {
	x := index(t)
	for in, want := range map[string]string{
		"nonesuch": `"nonesuch", which the list asks for`,
		"lost":     `"gone", which lost asks for`,
		"loop1":    "need each other",
	} {
		if _, err := x.Closure(context.Background(), in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v", in, err)
		}
	}
}

func TestReadIndexRefusesANameTwice(t *testing.T) {
	f := folder(t)
	f["updates/dm_mod.ko.xz"] = f["kernel/md/dm-mod.ko"]
	if _, err := ReadIndex(context.Background(), f); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("error is %v", err)
	}
}

func TestMatch(t *testing.T) {
	got, err := index2(t).Match(context.Background(), "virtio:d00000001v00001AF4")
	if err != nil || names(got) != "virtio_net" {
		t.Errorf("got %q, %v", names(got), err)
	}
}

// index2 is an index without the broken modules.
func index2(t testing.TB) *Index {
	x := index(t)
	x.Modules = slices.DeleteFunc(x.Modules, func(m *Module) bool { return m.Name == "lost" || strings.HasPrefix(m.Name, "loop") })
	return x
}

// lists is the folder of an image that holds the closure of some modules, decompressed.
func lists(t *testing.T, wanted ...string) fstest.MapFS {
	t.Helper()
	x := index(t)
	mods, err := x.Closure(context.Background(), wanted...)
	if err != nil {
		t.Fatal(err)
	}
	y, err := x.Subset(context.Background(), mods, Decompressed)
	if err != nil {
		t.Fatal(err)
	}
	ls, err := y.Lists(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	out := fstest.MapFS{}
	for n, b := range ls {
		out[n] = &fstest.MapFile{Data: b}
	}
	return out
}

func TestListsAreDepmods(t *testing.T) {
	l := lists(t, "virtio_net", "dm_verity")
	for name, want := range map[string]string{
		"modules.dep": "kernel/crypto/sha256.ko:\nkernel/late.ko:\nkernel/md/dm-bufio.ko: kernel/md/dm-mod.ko\nkernel/md/dm-mod.ko:\n" +
			"kernel/md/dm-verity.ko: kernel/md/dm-bufio.ko kernel/md/dm-mod.ko\nkernel/net/failover.ko:\n" +
			"kernel/net/net-failover.ko: kernel/net/failover.ko\nkernel/net/virtio_net.ko: kernel/net/net-failover.ko kernel/net/failover.ko\n",
		"modules.alias":   "alias crypto-sha256 sha256\nalias devname:mapper/control dm_mod\nalias virtio:d00000001v* virtio_net\n",
		"modules.softdep": "softdep late pre: dm_verity\nsoftdep dm_verity pre: sha256 nowhere post: late\n",
		"modules.builtin": "kernel/drivers/virtio/virtio-ring.ko\nkernel/fs/ext4/ext4.ko\n",
	} {
		if got := string(l[name].Data); got != want {
			t.Errorf("%s is\n%swant\n%s", name, got, want)
		}
	}
}

// loader is a Loader that inserts nothing but writes down what it would.
func loader(t *testing.T, fsys fs.FS, fail map[string]error) (*Loader, *[]string) {
	t.Helper()
	l, err := NewLoader(fsys)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	l.insert = func(_ fs.FS, file string) error {
		if err := fail[Name(file)]; err != nil {
			return err
		}
		got = append(got, Name(file))
		return nil
	}
	return l, &got
}

func TestLoad(t *testing.T) {
	for name, c := range map[string]struct {
		names string
		fail  map[string]error
		want  string
		err   string
	}{
		"in order":          {names: "virtio-net dm_verity", want: "failover net_failover virtio_net sha256 dm_mod dm_bufio dm_verity late"},
		"by alias":          {names: "devname:mapper/control", want: "dm_mod"},
		"built in":          {names: "ext4", want: ""},
		"unknown":           {names: "nonesuch dm_mod", want: "dm_mod", err: "nonesuch"},
		"dependency fails":  {names: "virtio_net dm_mod", fail: map[string]error{"failover": unix.EINVAL}, want: "dm_mod", err: "virtio_net"},
		"soft one may fail": {names: "dm_verity", fail: map[string]error{"sha256": unix.EINVAL}, want: "dm_mod dm_bufio dm_verity late"},
	} {
		t.Run(name, func(t *testing.T) {
			l, got := loader(t, lists(t, "virtio_net", "dm_verity"), c.fail)
			err := l.Load(context.Background(), strings.Fields(c.names)...)
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error is %v", err)
			}
			if s := strings.Join(*got, " "); s != c.want {
				t.Errorf("loaded %q, want %q", s, c.want)
			}
		})
	}
}

func TestLoadByModalias(t *testing.T) {
	sys := fstest.MapFS{
		"devices/pci0/virtio0/modalias": {Data: []byte("virtio:d00000001v00001AF4\n")},
		"devices/pci0/modalias":         {Data: []byte("pci:v00001AF4\n")},
		"devices/empty/modalias":        {Data: []byte("\n")},
	}
	l, got := loader(t, lists(t, "virtio_net", "dm_verity"), nil)
	loaded, err := l.LoadByModalias(context.Background(), sys)
	if err != nil || strings.Join(loaded, " ") != "virtio_net" {
		t.Errorf("loaded %q, %v", loaded, err)
	}
	if s := strings.Join(*got, " "); s != "failover net_failover virtio_net" {
		t.Errorf("inserted %q", s)
	}
	l, _ = loader(t, lists(t, "virtio_net"), map[string]error{"virtio_net": unix.ENODEV})
	if loaded, err := l.LoadByModalias(context.Background(), sys); err != nil || len(loaded) != 0 {
		t.Errorf("a module that finds no hardware: %q, %v", loaded, err)
	}
	l, _ = loader(t, lists(t, "virtio_net"), map[string]error{"virtio_net": unix.EINVAL})
	if _, err := l.LoadByModalias(context.Background(), sys); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a module that fails: %v", err)
	}
}

func TestMatchAlias(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"pci:v00001AF4d*sv*", "pci:v00001AF4d00001000sv00001AF4sd1", true},
		{"pci:v00001AF4d*sv*x", "pci:v00001AF4d00001000sv00001AF4sd1", false},
		{"dmi*:svnFoo/Bar:*", "dmi:bvn:svnFoo/Bar:pn", true},
		{"usb:v0[1-3]*", "usb:v02p", true},
		{"usb:v0[!1-3]*", "usb:v02p", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"a*", "a", true},
		{"", "", true},
		{"*a*b*c", "xxaxxbxxbxc", true},
		{"[", "[", false},
		{"a[bc", "ab", false},
	} {
		if got := matchAlias(c.pattern, c.s); got != c.want {
			t.Errorf("matchAlias(%q, %q) = %v", c.pattern, c.s, got)
		}
	}
}

func TestBrokenModules(t *testing.T) {
	good := module(t, "name=x")
	for name, f := range map[string]*fstest.MapFile{
		"x.ko":     {Data: []byte("no elf")},
		"cut.ko":   {Data: good[:70]},
		"x.ko.xz":  {Data: good},
		"y.ko.xz":  {Data: xzipped(t, good)[:80]},
		"z.ko.zst": {Data: []byte("no zstd")},
	} {
		r, err := Open(fstest.MapFS{name: f}, name)
		if err == nil {
			_, err = ReadModinfo(r)
			r.Close()
		}
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestParseNames(t *testing.T) {
	got, err := ParseNames(strings.NewReader("# what PID 1 loads\noverlay\n\n kernel/a.ko \n"))
	if err != nil || !slices.Equal(got, []string{"overlay", "kernel/a.ko"}) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"a b", "/abs", "../up"} {
		if _, err := ParseNames(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func FuzzModinfo(f *testing.F) {
	f.Add(module(f, "name=x", "depends=a,b", "softdep=pre: c post: d", "alias=pci:*"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ReadModinfo(io.NopCloser(bytes.NewReader(b)))
		parseModinfo(b)
	})
}

func FuzzMatchAlias(f *testing.F) {
	f.Add("pci:v*[0-9]?", "pci:v12")
	f.Fuzz(func(t *testing.T, p, s string) {
		if len(p) < 200 && len(s) < 200 {
			matchAlias(p, s)
		}
	})
}
