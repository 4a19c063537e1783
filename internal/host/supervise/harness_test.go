package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
)

// node is a supervisor on folders of its own, which can be ended and started again as a host is.
type node struct {
	t      *testing.T
	cfg    Config
	s      *Supervisor
	cancel context.CancelFunc
	ended  chan struct{}
	digest map[string]string // of "bundle/demo" and "image/demo"
	decl   mesh.Declaration
}

func newNode(t *testing.T) *node {
	t.Helper()
	root := cgroupRoot(t)
	dir, err := os.MkdirTemp("", "kp-node-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, digest: map[string]string{}}
	n.cfg = Config{
		State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"), Seed: filepath.Join(dir, "seed"),
		Cgroups: filepath.Join(root, "kp-"+filepath.Base(dir)), CgroupsOptional: true, Runc: mesh.PathRunc,
		HostSocket: filepath.Join(dir, "host.sock"), Stub: []string{stubProgram(t)}, Log: logrus.New(),
		Identities: identities{},
	}
	n.cfg.Log.SetOutput(testLog{t})
	for _, d := range []string{n.cfg.State, n.cfg.Run} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(os.Getenv(envExits), filepath.Join(n.cfg.Run, "exits")); err != nil {
		t.Fatal(err)
	}
	n.seed()
	n.decl = mesh.Declaration{Mesh: "home", Node: "alpha", Version: mesh.Version{Epoch: 0, Revision: 0}}
	n.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if n.s != nil {
			if err := n.s.StopAll(ctx); err != nil {
				t.Error(err)
			}
			n.stop()
		}
		if err := goleak.Find(goleak.IgnoreTopFunction("testing.(*T).Run"), goleak.IgnoreTopFunction("testing.tRunner.func1")); err != nil {
			t.Error(err)
		}
		if names, _ := os.ReadDir(n.cfg.Cgroups); len(names) > 0 {
			for _, e := range names {
				if e.IsDir() {
					t.Errorf("the cgroup %s is left", e.Name())
				}
			}
		}
		os.Remove(n.cfg.Cgroups)
		if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(b), dir) {
			t.Error("a mount is left")
		}
		os.RemoveAll(dir)
	})
	return n
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	fmt.Fprintf(os.Stderr, "    %s", b)
	return len(b), nil
}

type identities struct{}

func (identities) Issue(_ context.Context, module string) (cert, key, ca []byte, err error) {
	return []byte("cert of " + module), []byte("key of " + module), []byte("ca"), nil
}

// seed makes the seed with the demo as bundle and as image.
func (n *node) seed() {
	n.t.Helper()
	ctx := context.Background()
	f, err := artifact.FileFromDisk("bin/demo", demoProgram(n.t), 0o755)
	if err != nil {
		n.t.Fatal(err)
	}
	var packed bytes.Buffer
	layer, err := artifact.PackLayer(ctx, &packed, []artifact.File{f}, time.Unix(0, 0))
	if err != nil {
		n.t.Fatal(err)
	}
	open := func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	}
	o := artifact.Origin{Version: "1", Arch: runtime.GOARCH}
	b, err := artifact.NewBundle("demo", o, layer, open)
	if err != nil {
		n.t.Fatal(err)
	}
	i, err := artifact.NewImage("demo", o, artifact.ImageConfig{Entrypoint: []string{"/bin/demo"}}, layer, open)
	if err != nil {
		n.t.Fatal(err)
	}
	w, err := artifact.NewLayoutWriter(n.cfg.Seed)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, a := range []*artifact.Artifact{b, i} {
		if err := w.Add(ctx, a); err != nil {
			n.t.Fatal(err)
		}
		n.digest[a.Ref.String()] = string(a.Desc.Digest)
	}
	if err := w.Close(); err != nil {
		n.t.Fatal(err)
	}
}

// start begins a host's life, stop ends it as a crash would for all that the workloads can tell.
func (n *node) start() {
	n.t.Helper()
	s, err := New(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.s, n.cancel, n.ended = s, cancel, make(chan struct{})
	go func() {
		defer close(n.ended)
		if err := s.Run(ctx); err != nil {
			n.t.Error(err)
		}
	}()
}

func (n *node) stop() {
	n.cancel()
	<-n.ended
	n.s = nil
}

// reboot ends the host and everything it ran, without telling it.
func (n *node) reboot() {
	n.t.Helper()
	n.stop()
	c, _, err := openCgroups(n.cfg.Cgroups, true)
	if err != nil {
		n.t.Fatal(err)
	}
	names, _ := c.names()
	for _, name := range names {
		if err := c.kill(name, 5*time.Second); err != nil {
			n.t.Fatal(err)
		}
	}
	ms, _ := filepath.Glob(filepath.Join(n.cfg.Run, "instances", "*", "oci", "rootfs"))
	for _, m := range ms {
		unmount(m)
	}
	es, _ := os.ReadDir(n.cfg.Run)
	for _, e := range es {
		if e.Name() != "exits" {
			if err := os.RemoveAll(filepath.Join(n.cfg.Run, e.Name())); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	n.start()
}

func (n *node) process(id string, args ...string) mesh.Declared {
	return mesh.Declared{Module: "m", Resource: mesh.Resource{
		ID: id, Type: mesh.KindProcess, Bundle: "demo", Digest: n.digest["bundle/demo"], Args: args,
		Stop: mesh.Stop{Grace: mesh.Duration(2 * time.Second)},
	}}
}

func (n *node) container(id string, args ...string) mesh.Declared {
	return mesh.Declared{Module: "m", Resource: mesh.Resource{
		ID: id, Type: mesh.KindContainer, Name: "demo", Network: "host", Digest: n.digest["image/demo"], Args: args,
		Stop: mesh.Stop{Grace: mesh.Duration(2 * time.Second)},
	}}
}

func (n *node) declare(rs ...mesh.Declared) {
	n.t.Helper()
	n.decl.Revision++
	n.decl.Epoch = max(n.decl.Epoch, n.s.Epoch())
	n.decl.Resources = rs
	if err := n.s.Declare(context.Background(), n.decl); err != nil {
		n.t.Fatal(err)
	}
}

// until waits for a condition of a resource.
func (n *node) until(key, what string, ok func(hostapi.ResourceStatus) bool) hostapi.ResourceStatus {
	n.t.Helper()
	limit := time.After(25 * time.Second)
	for {
		changed := n.s.Changed()
		var last hostapi.ResourceStatus
		for _, r := range n.s.Status().Resources {
			if r.Key == key {
				if ok(r) {
					return r
				}
				last = r
			}
		}
		select {
		case <-changed:
		case <-limit:
			n.t.Fatalf("%s is not %s: %+v\n%s", key, what, last, n.log(key))
		}
	}
}

func (n *node) state(key, state string) hostapi.ResourceStatus {
	n.t.Helper()
	return n.until(key, state, func(r hostapi.ResourceStatus) bool { return r.State == state })
}

// settled waits until everything is as declared.
func (n *node) settled() {
	n.t.Helper()
	limit := time.After(25 * time.Second)
	for {
		changed := n.s.Changed()
		st := n.s.Status()
		if st.Settled && st.Applied == st.Declared && st.Declared == n.decl.Version {
			return
		}
		select {
		case <-changed:
		case <-limit:
			n.t.Fatalf("not settled: %+v", st)
		}
	}
}

func (n *node) log(key string) string {
	r, err := n.s.Logs(context.Background(), key, LogOptions{})
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	b, _ := io.ReadAll(r)
	return string(b)
}

// said waits until a resource's log holds text.
func (n *node) said(key, text string) string {
	n.t.Helper()
	for range 500 {
		if l := n.log(key); strings.Contains(l, text) {
			return l
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.t.Fatalf("the log of %s does not say %q:\n%s", key, text, n.log(key))
	return ""
}
