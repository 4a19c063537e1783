package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// peer is a Debian image with the same servers, built with mkosi by a script that stands beside the repository.
type peer struct {
	script, dir string
	rebuild     float64 // seconds of its incremental build
}

// errNoPeer says that the peer is missing, which is no failure of ours.
var errNoPeer = errors.New("the peer is missing: there is no ../shared/peers/mkosi/run beside the repository")

// mkosi builds the peer's image, once a run.
func (b *bench) mkosi(ctx context.Context) (*peer, error) {
	if b.peer != nil {
		return b.peer, nil
	}
	p := &peer{script: filepath.Join(b.lab.Root, "..", "shared", "peers", "mkosi", "run")}
	if _, err := os.Stat(p.script); err != nil {
		return nil, errNoPeer
	}
	if os.Getuid() != 0 {
		return nil, errors.New("the peer is missing: it can only be built by root")
	}
	var err error
	if p.dir, err = os.MkdirTemp("", "kingpost-peer-"); err != nil {
		return nil, err
	}
	b.peer = p
	b.say("building the peer's image with mkosi: setup, a build that fills its cache, then the one that counts")
	if _, err := p.run(ctx, "setup"); err != nil {
		return nil, err
	}
	if _, err := p.run(ctx, "incremental"); err != nil {
		return nil, err
	}
	if p.rebuild, err = p.run(ctx, "incremental"); err != nil {
		return nil, err
	}
	b.say("the peer's incremental build took %.1f s", p.rebuild)
	return p, nil
}

// run runs the script and returns the seconds that it prints, where it prints any.
func (p *peer) run(ctx context.Context, what string) (float64, error) {
	cmd := exec.CommandContext(ctx, p.script, p.dir, what)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s %s", err, out, exit.Stderr)
		}
		return 0, fmt.Errorf("the peer, mkosi %s: %w", what, err)
	}
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		return 0, nil
	}
	return strconv.ParseFloat(lines[len(lines)-1], 64)
}

func (p *peer) image() string { return filepath.Join(p.dir, "out", "image.raw") }

// close removes the peer's folder. What it holds belongs to root, and nothing is mounted in it once mkosi has ended.
func (p *peer) close() { os.RemoveAll(p.dir) }
