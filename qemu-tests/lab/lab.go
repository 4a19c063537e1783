// Package lab is the harness of the end-to-end tests: it builds the image once, boots nodes from it, raises them, cuts
// their power, and keeps what a failed test leaves.
//
// It asserts nothing; tests do. It never leaves a machine, a socket or a disk behind, whatever ends the tests: QEMU dies
// with the test process, and files live in one folder that Close removes. Start with New, then Lab.Boot.
package lab

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/nodevm"
)

// Options says what a lab works with.
type Options struct {
	// Kingpost is the operator's program. Empty: bin/kingpost of the repository, which is built first.
	Kingpost string
	// Image is the folder of a built image (disk.img in it). Empty: images/vm.yaml is built.
	Image string
	// Artefacts is where the folders of failed tests go. Empty: out/failed of the repository.
	Artefacts string
	// Log gets what a build prints, and where the lab is.
	Log io.Writer
}

// Lab is what all tests of a run share.
type Lab struct {
	Root      string // of the repository
	Kingpost  string // the operator's program
	ImageDir  string
	Image     string // the raw disk image
	ImageSize int64  // bytes
	Operator  ed25519.PrivateKey
	Claim     string // Operator's public half, for node.yaml
	Artefacts string

	direct  nodevm.Boot
	dir     string
	log     io.Writer
	taken   time.Time // of files that the lab writes into images
	janitor func()
	closed  sync.Once

	mu     sync.Mutex
	number int
	nodes  map[*Node]bool
	raised map[string]*raisedDisk
	built  map[string]string // guest programs, by package
}

// New builds what is to be tested.
func New(ctx context.Context, o Options) (_ *Lab, err error) {
	l := &Lab{Kingpost: o.Kingpost, ImageDir: o.Image, Artefacts: o.Artefacts, log: o.Log, taken: time.Now(),
		nodes: map[*Node]bool{}, raised: map[string]*raisedDisk{}, built: map[string]string{}}
	if l.log == nil {
		l.log = io.Discard
	}
	if l.Root, err = repository(); err != nil {
		return nil, err
	}
	if l.Artefacts == "" {
		l.Artefacts = filepath.Join(l.Root, "out", "failed")
	}
	if l.Kingpost == "" {
		l.Kingpost = filepath.Join(l.Root, "bin", "kingpost")
		if err := l.Run(ctx, "go", "build", "-trimpath", "-o", l.Kingpost, "./cmd/kingpost"); err != nil {
			return nil, err
		}
	}
	if l.ImageDir == "" {
		l.ImageDir = filepath.Join(l.Root, "out", "vm")
		if err := l.Run(ctx, l.Kingpost, "build", "images/vm.yaml"); err != nil {
			return nil, err
		}
	}
	l.Image = filepath.Join(l.ImageDir, "disk.img")
	st, err := os.Stat(l.Image)
	if err != nil {
		return nil, fmt.Errorf("lab: the image: %w", err)
	}
	l.ImageSize = st.Size()
	// Sockets live in it, and their paths must be short.
	if l.dir, err = os.MkdirTemp("", "kingpost-lab-"); err != nil {
		return nil, err
	}
	if err := l.hireJanitor(); err != nil {
		os.RemoveAll(l.dir)
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	_, l.Operator, err = ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	l.Claim = tlsid.FormatPublicKey(l.Operator.Public().(ed25519.PublicKey))
	if l.direct, err = nodevm.Direct(l.dir, l.Image); err != nil {
		return nil, err
	}
	return l, nil
}

// hireJanitor starts a process that removes the lab's folder when this one has ended, however that was: a panic, the time
// limit of `go test`, a SIGKILL. It waits for the end of a pipe that only we hold.
func (l *Lab) hireJanitor() error {
	cmd := exec.Command("sh", "-c", `read _; sleep 1; rm -rf -- "$1"`, "janitor", l.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to our group is not for it
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("lab: start the janitor: %w", err)
	}
	l.janitor = func() {
		pipe.Close()
		cmd.Wait()
	}
	return nil
}

// Close ends every machine that still runs and removes all files of the lab.
func (l *Lab) Close() error {
	l.mu.Lock()
	var left []*Node
	for n := range l.nodes {
		left = append(left, n)
	}
	l.mu.Unlock()
	for _, n := range left {
		n.Discard()
	}
	err := os.RemoveAll(l.dir)
	l.closed.Do(l.janitor)
	return err
}

// Dir makes a folder that lives as long as the lab.
func (l *Lab) Dir(name string) (string, error) {
	l.mu.Lock()
	l.number++
	n := l.number
	l.mu.Unlock()
	dir := filepath.Join(l.dir, fmt.Sprintf("%d-%s", n, name))
	return dir, os.Mkdir(dir, 0o700)
}

// Direct is what a direct start of the image's kernel needs.
func (l *Lab) Direct() nodevm.Boot { return l.direct }

// Run runs a program in the repository's folder, its output going to the lab's log.
func (l *Lab) Run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.Root, l.log, l.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("lab: %s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}

// Guest builds a static program of the repository for the node, "./qemu-tests/guest", once, and returns its bytes.
func (l *Lab) Guest(ctx context.Context, pkg string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	path := l.built[pkg]
	if path == "" {
		path = filepath.Join(l.dir, strings.NewReplacer("/", "_", ".", "").Replace(pkg))
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, pkg)
		cmd.Dir = l.Root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("lab: build %s: %w: %s", pkg, err, out)
		}
		l.built[pkg] = path
	}
	return os.ReadFile(path)
}

// repository is the folder with go.mod, at or above the working directory.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", errors.New("lab: no go.mod at or above " + dir)
		}
	}
}

// Taken is the time of files that go into images.
func (l *Lab) Taken() time.Time { return l.taken }
