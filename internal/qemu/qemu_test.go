package qemu

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/png"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestArgs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config Config
		has    []string
		hasNot []string
		err    string
	}{
		"uefi": {
			config: Config{Name: "a", Dir: "/d", Accel: "tcg", Firmware: &Firmware{Code: "/code", Vars: "/vars"}, Disks: []Disk{{Path: "/x,y", Unsafe: true}}},
			has:    []string{"readonly=on,file=/code", "file=/mine", "filename=/x,,y,read-only=off,discard=unmap,cache.no-flush=on", "virtio-blk-pci,drive=image0,bootindex=1", "-m 1024", "-cpu max,-erms,-fsrm,-pclmulqdq "},
			hasNot: []string{"-kernel", "blklogwrites"},
		},
		"recorded": {
			config: Config{Dir: "/d", Kernel: "/k", Initrd: "/i", Append: "a b", Disks: []Disk{{Path: "/x", Format: "qcow2", Log: "/l"}}},
			has:    []string{"-kernel /k -initrd /i -append a b", "driver=blklogwrites,node-name=logged0,file=image0,log=log0", "drive=logged0,bootindex=1,request-merging=off,discard=off,write-zeroes=off", "driver=qcow2"},
			hasNot: []string{"pflash"},
		},
		"offline": {
			config: Config{Dir: "/d", Kernel: "/k", NICs: []NIC{{User: &User{Restrict: true, Forwards: []Forward{{Guest: 7443}}}}, {Socket: "/s"}}},
			has:    []string{"user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:0-:7443", "stream,id=net1,server=off,addr.type=unix,addr.path=/s", "mac=52:54:00:4b:50:02,romfile="},
		},
		"arm64":        {config: Config{Dir: "/d", Arch: "arm64", Accel: "tcg", Kernel: "/k"}, has: []string{"-machine virt", "max,pauth-impdef=on"}},
		"nothing":      {config: Config{Dir: "/d"}, err: "neither firmware nor a kernel"},
		"unknown arch": {config: Config{Dir: "/d", Arch: "mips", Kernel: "/k"}, err: "mips"},
		"long path":    {config: Config{Dir: "/" + strings.Repeat("d", 120), Kernel: "/k"}, err: "too long"},
		"loose card":   {config: Config{Dir: "/d", Kernel: "/k", NICs: []NIC{{}}}, err: "connected to nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, args, err := test.config.args("/mine")
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, wanted %q", err, test.err)
			}
			line := strings.Join(args, " ")
			for _, s := range test.has {
				if !strings.Contains(line, s) {
					t.Errorf("%s lacks %q", line, s)
				}
			}
			for _, s := range test.hasNot {
				if strings.Contains(line, s) {
					t.Errorf("%s has %q", line, s)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[hostArch()]
	for name, c := range map[string]struct {
		c    Config
		want string // in the error, "" where there is none
	}{
		"nothing said":      {Config{}, ""},
		"all said":          {Config{Arch: hostArch(), Accel: "kvm", Memory: 512, CPUs: 2}, ""},
		"negative memory":   {Config{Memory: -5}, "memory"},
		"little memory":     {Config{Memory: 1}, "memory"},
		"too much memory":   {Config{Memory: 1 << 30}, "memory"},
		"negative CPUs":     {Config{CPUs: -1}, "CPUs"},
		"a thousand CPUs":   {Config{CPUs: 1000}, "CPUs"},
		"nine CPUs of ARM":  {Config{Arch: "arm64", CPUs: 9}, "from 1 to 8"},
		"unknown accel":     {Config{Accel: "xen"}, "kvm and tcg"},
		"KVM of the other":  {Config{Arch: other, Accel: "kvm"}, "tcg"},
		"unknown processor": {Config{Arch: "riscv64"}, "amd64 and arm64"},
	} {
		err := c.c.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseForward(t *testing.T) {
	for s, want := range map[string]Forward{"8443:7443": {8443, 7443}, "7443": {0, 7443}} {
		if got, err := ParseForward(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "a", "1:", ":1:", "70000", "1:0", "-1:5"} {
		if got, err := ParseForward(s); err == nil {
			t.Errorf("%q was read as %+v", s, got)
		}
	}
}

func TestUsernetPort(t *testing.T) {
	const info = `Hub -1 (net0):
  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ
  TCP[HOST_FORWARD]  13       127.0.0.1 45217       10.0.2.15  7443     0     0
`
	if p := usernetPort(info, 7443); p != 45217 {
		t.Errorf("port %d", p)
	}
	if p := usernetPort(info, 5000); p != 0 {
		t.Errorf("port %d for what is not forwarded", p)
	}
}

func TestSerial(t *testing.T) {
	path := filepath.Join(t.TempDir(), SerialFile)
	s, err := newSerial(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Write([]byte("\x1b[2J\x1b[1;31mone\r\ntwo\n"))
	m := s.Now()
	go s.Write([]byte("node key SHA256:abc\n"))
	got, err := s.Wait(t.Context(), m, regexp.MustCompile(`key (\S+)\n`))
	if err != nil || got[1] != "SHA256:abc" {
		t.Fatal(got, err)
	}
	if text := s.Since(0); text != "one\ntwo\nnode key SHA256:abc\n" {
		t.Errorf("%q", text)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Wait(short, m, regexp.MustCompile(`two`)); err == nil || !strings.Contains(err.Error(), "SHA256:abc") {
		t.Errorf("wait for what was said before the mark: %v", err)
	}
	big := bytes.Repeat([]byte("x"), 1<<20)
	for range 7 {
		s.Write(big)
	}
	s.Write([]byte("last"))
	if len(s.text) > maxSerial+maxSerial/2 {
		t.Errorf("%d bytes kept", len(s.text))
	}
	if s.Since(s.Now()-4) != "last" {
		t.Error("a mark is not where it was after the start was forgotten")
	}
	s.end()
	if _, err := s.Wait(t.Context(), 0, regexp.MustCompile(`never`)); err == nil {
		t.Error("the wait for an ended machine's console did not end")
	}
}

func TestReadPPM(t *testing.T) {
	img, err := readPPM(strings.NewReader("P6\n2 1\n255\n\x01\x02\x03\x04\x05\x06"))
	if err != nil {
		t.Fatal(err)
	}
	if r, _, _, _ := img.At(1, 0).RGBA(); img.Bounds() != image.Rect(0, 0, 2, 1) || r>>8 != 4 {
		t.Errorf("%v %v", img.Bounds(), r)
	}
	for _, s := range []string{"", "P5\n1 1\n255\n1", "P6\n2 1\n255\n\x01", "P6\n99999 99999\n255\n"} {
		if _, err := readPPM(strings.NewReader(s)); err == nil {
			t.Errorf("%q was read", s)
		}
	}
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 1 << 20, 5<<20 + 4096} {
		f.WriteAt(bytes.Repeat([]byte("data"), 1024), at)
	}
	f.Truncate(64 << 20)
	f.Close()
	if err := Copy(t.Context(), to, from, 128<<20); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(from)
	b, _ := os.ReadFile(to)
	if len(b) != 128<<20 || !bytes.Equal(a, b[:len(a)]) {
		t.Error("the copy differs")
	}
	var st syscall.Stat_t
	if syscall.Stat(to, &st); st.Blocks*512 > 4<<20 {
		t.Errorf("the copy takes %d bytes, it is not sparse", st.Blocks*512)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := copyData(ctx, nil, mustOpen(t, from), 64<<20); err == nil {
		t.Error("a copy went on after its context ended")
	}
}

func mustOpen(t *testing.T, path string) *os.File {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestMachine starts real firmware without a disk.
func TestMachine(t *testing.T) {
	firmware, err := FindFirmware("amd64")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Fatal("needs the Debian package qemu-system-x86, which make test installs")
	}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	vm, err := Start(ctx, Config{
		Name: "firmware", Dir: dir, Memory: 128, Firmware: firmware,
		NICs: []NIC{{User: &User{Restrict: true, Forwards: []Forward{{Guest: 7443}}}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Kill()
	if _, err := vm.Serial.Wait(ctx, 0, regexp.MustCompile(`BdsDxe|UEFI`)); err != nil {
		t.Error(err)
	}
	port, err := vm.Port(ctx, 7443)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port)); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if m, err := vm.Memory(); err != nil || m < 10<<20 {
		t.Errorf("memory %d, %v", m, err)
	}
	shot := filepath.Join(dir, "screen.png")
	if err := vm.Screenshot(ctx, shot); err != nil {
		t.Error(err)
	} else if img, err := png.Decode(mustOpen(t, shot)); err != nil || img.Bounds().Dx() < 320 {
		t.Errorf("screenshot: %v", err)
	}
	vm.Quit(ctx)
	if err := vm.Wait(ctx); err != nil {
		t.Error(err)
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if d := cmp.Diff([]string{"screen.png", SerialFile, "vars.fd"}, names); d != "" {
		t.Error(d)
	}
	if _, err := vm.QMP.Monitor(ctx, "info status"); err == nil {
		t.Error("QMP answers after the end")
	}
}

// TestPortTaken asks QEMU itself, whose words of it we read.
func TestPortTaken(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := Forward{Host: l.Addr().(*net.TCPAddr).Port, Guest: 5000}
	kernel := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(kernel, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Config{
		Name: "taken", Dir: t.TempDir(), Kernel: kernel, NICs: []NIC{{User: &User{Forwards: []Forward{{Guest: 7443}, taken}}}},
	}, nil)
	var got *PortTakenError
	if !errors.As(err, &got) || got.Forward != taken {
		t.Errorf("got %v", err)
	}
}

func TestStartRefused(t *testing.T) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Fatal("needs the Debian package qemu-system-x86, which make test installs")
	}
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	_, err := Start(t.Context(), Config{Name: "bad", Dir: t.TempDir(), Kernel: "/nowhere"}, nil)
	if err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("QEMU's own complaint is not in the error: %v", err)
	}
}
