package qemutests

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/imagetest"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

// The node's ports that the containers of TestContainers publish.
const (
	greetPort, shopOrders, dataOrders = 28080, 28081, 28181
)

// TestContainers runs containers of somebody else's image on private networks: they find each other by name over IPv4 and
// IPv6, are reached from outside, keep a connection while the host is killed and comes again, and can ask the kernel for
// nothing that they should not have.
func TestContainers(t *testing.T) {
	t.Parallel()
	n, err := theLab.StartRaised(t.Context(), "", lab.Spec{Forwards: []int{greetPort, shopOrders, dataOrders}})
	if n != nil {
		watch(t, n)
	}
	need(t, err, "start a raised node")
	need(t, n.WaitUp(t.Context(), 0), "boot a raised node")
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	guest := buildGuest(t, n)
	digests := mesh.Digests{"image/demo": {"amd64": pushDemo(t, n)}, "bundle/guest": {"amd64": guest}}
	private := func(module, id string, args []string, ports ...mesh.Port) {
		m := mesh.Manifest{Module: module, Version: "1", Resources: []mesh.Resource{{ID: id, Type: mesh.KindContainer, Name: "demo", Args: args, Ports: ports}}}
		call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: m, Digests: digests}, nil)
	}
	private("shop", "web", []string{"net"}, mesh.Port{Host: greetPort, Container: 8080}, mesh.Port{Host: shopOrders, Container: 8081})
	private("data", "db", []string{"net"}, mesh.Port{Host: dataOrders, Container: 8081})
	private("tries", "it", []string{"try", "/bin/raised"})
	full := mesh.Manifest{Module: "full", Version: "1", Resources: []mesh.Resource{
		{ID: "fills", Type: mesh.KindContainer, Name: "demo", Args: []string{"fill", "/data/file"}, Volumes: []mesh.Mount{{Volume: "data", Path: "/data"}}, After: []string{"data"}},
		{ID: "data", Type: mesh.KindVolume, Size: 8 << 20},
	}}
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: full, Digests: digests}, nil)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the containers")

	inside := []struct{ what, words, want string }{
		{"by name over IPv4", "dial tcp4 db.data:8080", "db-data greets 10.209."},
		{"by name over IPv6", "dial tcp6 db.data:8080", "db-data greets [fd6b:706f:7374::"},
		{"a datagram", "dial udp data:8080", "db-data heard hello"},
		{"nobody's name", "lookup nobody", "error: "},
		{"the host's API", "dial tcp 10.209.0.1:7443", "error: "},
	}
	found := func(when string) {
		t.Helper()
		for _, c := range inside {
			if got := tell(t, n, shopOrders, c.words); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s, %s: %s: %q, wanted %q", when, c.what, c.words, got, c.want)
			}
		}
	}
	found("at first")
	if got := tell(t, n, dataOrders, "dial tcp6 web.shop:8080"); !strings.HasPrefix(got, "web-shop greets") {
		t.Errorf("the other way round: %q", got)
	}
	confined(t, n)
	limited(t, n)

	kept := connect(t, n, greetPort)
	if line, err := bufio.NewReader(kept).ReadString('\n'); err != nil || !strings.HasPrefix(line, "web-shop greets") {
		t.Fatalf("from outside: %q, %v", line, err)
	}
	before := resource(t, n, "shop/web")
	killer := mesh.Manifest{Module: "killer", Version: "1", Resources: []mesh.Resource{{
		ID: "kill", Type: mesh.KindProcess, Bundle: "guest", Args: []string{"kill-host"}, HostAPI: true,
		Capabilities: []string{"CAP_KILL"}, Policy: mesh.PolicyOnce,
	}}}
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: killer, Digests: digests}, nil)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		r, err := lab.Resource(s, "killer/kill")
		if err == nil && r.State != "done" {
			err = fmt.Errorf("the killer is %s: %s", r.State, r.Reason)
		}
		if err != nil {
			return err
		}
		// What it wrote while no host ran is in its pipe until the next one has taken it.
		if text, err := n.Logs(t.Context(), "killer/kill", 4096); err != nil || !strings.Contains(text, "kills the host") {
			return fmt.Errorf("the killer says %q, %v", text, err)
		}
		return nil
	}), "the host to be killed and to come again, and to have what the killer said")
	if _, err := io.WriteString(kept, "still there\n"); err != nil {
		t.Errorf("the connection after the host was killed: %v", err)
	}
	if line, err := bufio.NewReader(kept).ReadString('\n'); err != nil || line != "still there\n" {
		t.Errorf("the connection after the host was killed: %q, %v", line, err)
	}
	if after := resource(t, n, "shop/web"); after.PID != before.PID || after.Restarts != before.Restarts {
		t.Errorf("the container was started again: %s, then %s", lab.JSON(before), lab.JSON(after))
	}
	found("after the host was killed")
}

// pushDemo brings an image of two layers into the store: a program, and a hard link to it that is root's and setuid.
func pushDemo(t *testing.T, n *lab.Node) string {
	t.Helper()
	program, err := theLab.Guest(t.Context(), "./internal/host/supervise/testdata/demo")
	need(t, err, "the demo program")
	a, err := imagetest.New("demo", "amd64", ocispec.ImageConfig{Entrypoint: []string{"/bin/demo"}},
		[]imagetest.Entry{{Name: "bin", Type: tar.TypeDir}, {Name: "bin/demo", Mode: 0o755, Content: program}, {Name: "tmp", Type: tar.TypeDir, Mode: 0o1777}},
		[]imagetest.Entry{{Name: "bin/raised", Mode: 0o4755, Content: program}})
	need(t, err, "make an image")
	c := n.Client()
	need(t, (&artifact.Client{HTTP: c.HTTP(), Base: c.BaseURL()}).Push(t.Context(), a), "push an image")
	return string(a.Desc.Digest)
}

// confined checks what the kernel said to a container that tried.
func confined(t *testing.T, n *lab.Node) {
	t.Helper()
	text, err := n.Logs(t.Context(), "tries/it", 64<<10)
	need(t, err, "the log of tries/it")
	var got map[string]string
	if i := strings.Index(text, "{"); i < 0 || json.NewDecoder(strings.NewReader(text[i:])).Decode(&got) != nil {
		t.Fatalf("tries/it says %q", text)
	}
	for what, want := range map[string]string{
		"keyctl": "operation not permitted", "mount": "operation not permitted", "unshare": "operation not permitted",
		"bpf": "operation not permitted", "stat": "allowed", "Seccomp": "2", "NoNewPrivs": "1",
	} {
		if got[what] != want {
			t.Errorf("%s: %q, wanted %q", what, got[what], want)
		}
	}
	// It is there, it runs, and gains nothing: real and effective account are the container's.
	var uid, effective int
	if _, err := fmt.Sscan(got["run /bin/raised"], &uid, &effective); err != nil || uid == 0 || effective != uid {
		t.Errorf("a setuid program of root's ran as %q", got["run /bin/raised"])
	}
}

// limited checks that a volume of 8 MiB holds no more.
func limited(t *testing.T, n *lab.Node) {
	t.Helper()
	var text string
	need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
		var err error
		text, err = n.Logs(ctx, "full/fills", 4096)
		if err == nil && !strings.Contains(text, "wrote") {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	}), "a volume to be full")
	var size int64
	_, err := fmt.Sscanf(text[strings.Index(text, "wrote"):], "wrote %d", &size)
	if err != nil || size > 8<<20 || size < 7<<20 || !strings.Contains(text, "quota exceeded") {
		t.Errorf("a volume of 8 MiB: %q", text)
	}
}

func connect(t *testing.T, n *lab.Node, port int) net.Conn {
	t.Helper()
	at, err := n.Port(t.Context(), port)
	need(t, err, "port %d", port)
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", at), time.Minute)
	need(t, err, "connect to port %d of %s", port, n.Name)
	t.Cleanup(func() { c.Close() })
	need(t, c.SetDeadline(time.Now().Add(lab.StepTime)), "limit a connection")
	return c
}

// tell has a container do something and returns what it says of it.
func tell(t *testing.T, n *lab.Node, port int, words string) string {
	t.Helper()
	c := connect(t, n, port)
	defer c.Close()
	fmt.Fprintln(c, words)
	line, err := bufio.NewReader(c).ReadString('\n')
	need(t, err, "%s", words)
	return strings.TrimSpace(line)
}
