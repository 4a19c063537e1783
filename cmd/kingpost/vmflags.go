package main

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"kingpost/internal/fat32"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/qemu"
	"kingpost/internal/release"
)

// forwards are the ports of --forward, and any free one for the API where none was named for it. It is the first.
func (f *vmFlags) forwards() ([]qemu.Forward, error) {
	var out []qemu.Forward
	for _, s := range f.forward {
		w, err := qemu.ParseForward(s)
		if err != nil {
			return nil, usageError("--forward: %v", err)
		}
		for _, o := range out {
			switch {
			case o.Guest == w.Guest:
				return nil, usageError("--forward: the node's port %d is forwarded twice", w.Guest)
			case o.Host == w.Host && w.Host != 0:
				return nil, usageError("--forward: port %d of this machine is to lead to two ports of the node", w.Host)
			}
		}
		out = append(out, w)
	}
	isAPI := func(w qemu.Forward) bool { return w.Guest == mesh.PortAPI }
	if !slices.ContainsFunc(out, isAPI) {
		return append([]qemu.Forward{{Guest: mesh.PortAPI}}, out...), nil
	}
	slices.SortStableFunc(out, func(a, b qemu.Forward) int {
		switch {
		case isAPI(a):
			return -1
		case isAPI(b):
			return 1
		}
		return 0
	})
	return out, nil
}

// checkMachine refuses what no machine can be, before anything is made for it.
func (f *vmFlags) checkMachine() error {
	switch {
	case f.memory <= 0:
		return usageError("--memory %d: a machine needs memory, in MiB, such as 1024", f.memory)
	case f.cpus <= 0:
		return usageError("--cpus %d: a machine needs a CPU", f.cpus)
	case f.arch == "":
		return usageError("--arch is empty; amd64 and arm64 are known")
	}
	c := qemu.Config{Arch: f.arch, Accel: f.accel, Memory: f.memory, CPUs: f.cpus}
	if err := c.Check(); err != nil {
		return usageError("%v", err)
	}
	if f.accel == "kvm" {
		kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("--accel kvm: this machine or this user has no KVM: %w; --accel tcg emulates, which is slower", err)
		}
		kvm.Close()
	}
	return nil
}

// sameConfig refuses flags that say anything else than the node.yaml which disk has and keeps.
func (f *vmFlags) sameConfig(disk string, config []byte) error {
	file, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	has, err := release.ReadNodeConfig(file, st.Size())
	if err != nil && !errors.Is(err, fat32.ErrNotFound) {
		return fmt.Errorf("read the node.yaml of %s: %w", disk, err)
	}
	if bytes.Equal(has, config) {
		return nil
	}
	if c, err := release.ParseNodeConfig(has); err == nil && f.config == "" {
		want, err := release.ParseNodeConfig(config)
		if err == nil && c.Claim == want.Claim && (f.raise == "" || c.Mesh.Raise == f.raise) {
			return nil
		}
	}
	return refusedError("%s exists already and keeps its node.yaml, which says something else; leave --config, --claim and --raise away, or remove the file", disk)
}

// nodeConfig is node.yaml as the flags say, nil where they say nothing.
func (f *vmFlags) nodeConfig() ([]byte, error) {
	if f.config != "" {
		if f.claim != "" || f.raise != "" {
			return nil, usageError("--config is a whole node.yaml; --claim and --raise cannot be added to it")
		}
		b, err := readSmall(f.config)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		return b, nil
	}
	if f.claim == "" {
		if f.raise != "" {
			return nil, usageError("--raise needs --claim: a node raises only for the holder of a key")
		}
		return nil, nil
	}
	b, err := readSmall(f.claim)
	if err != nil {
		return nil, fmt.Errorf("--claim: %w", err)
	}
	claim, err := claimKey(b)
	if err != nil {
		return nil, fmt.Errorf("--claim %s: %w", f.claim, err)
	}
	return yaml.Marshal(mesh.NodeConfig{Claim: claim, Mesh: mesh.MeshConfig{Raise: f.raise}})
}

// claimKey is the claim for node.yaml of a file that holds a public key, or a private one.
func claimKey(b []byte) (string, error) {
	if strings.Contains(string(b), "PRIVATE KEY") {
		key, err := tlsid.ParsePrivateKey(b)
		if err != nil {
			return "", err
		}
		return tlsid.FormatPublicKey(key.Public().(ed25519.PublicKey)), nil
	}
	key, err := tlsid.ParsePublicKey(string(b))
	if err != nil {
		return "", err
	}
	return tlsid.FormatPublicKey(key), nil
}
