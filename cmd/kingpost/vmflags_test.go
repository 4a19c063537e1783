package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kingpost/installer/flash/madeup"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
)

func TestVMForwards(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		want  []qemu.Forward
		err   string
	}{
		"none":              {nil, []qemu.Forward{{Guest: 7443}}, ""},
		"another":           {[]string{"5000"}, []qemu.Forward{{Guest: 7443}, {Guest: 5000}}, ""},
		"the API's":         {[]string{"15000:5000", "17443:7443"}, []qemu.Forward{{Host: 17443, Guest: 7443}, {Host: 15000, Guest: 5000}}, ""},
		"the API's, free":   {[]string{"7443"}, []qemu.Forward{{Guest: 7443}}, ""},
		"one port to two":   {[]string{"15000:5000", "15000:5001"}, nil, "port 15000 of this machine"},
		"two ports to one":  {[]string{"15000:5000", "5000"}, nil, "port 5000 is forwarded twice"},
		"no port":           {[]string{"http"}, nil, "HOSTPORT:GUESTPORT"},
		"beyond every port": {[]string{"1:99999"}, nil, "from 1 to 65535"},
	} {
		f := vmFlags{forward: c.flags}
		got, err := f.forwards()
		if c.err == "" && (err != nil || !slices.Equal(got, c.want)) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || code(err) != exitUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func code(err error) int {
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

// TestVMNoSuchMachine: what no machine can be is wrong usage, told before the image is looked at.
func TestVMNoSuchMachine(t *testing.T) {
	for args, want := range map[string]string{
		"--memory 0":           "a machine needs memory",
		"--memory -5":          "a machine needs memory",
		"--memory 1":           "1 MiB of memory are not from 64",
		"--cpus 0":             "a machine needs a CPU",
		"--cpus 1000":          "1000 CPUs are not from 1 to 255",
		"--accel xen":          "kvm and tcg are known",
		"--arch sparc":         "amd64 and arm64 are",
		"--arch=":              "--arch is empty",
		"--disk-size 1PB":      "such as 8GiB",
		"--forward x":          "HOSTPORT:GUESTPORT",
		"--config a --claim b": "--config is a whole node.yaml",
		"--raise home":         "--raise needs --claim",
	} {
		var errs strings.Builder
		if c := run(append([]string{"vm", "nowhere.img"}, strings.Fields(args)...), nil, io.Discard, &errs); c != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit %d, %s", args, c, errs.String())
		}
	}
}

// TestVMSameConfig: the flags with which a disk was made may be given again.
func TestVMSameConfig(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	i, err := madeup.Make("0.2.0", 40<<20)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, io.NewSectionReader(i.Disk, 0, i.Disk.Size()))
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	key := func(name string) string {
		name = filepath.Join(dir, name)
		if c := run([]string{"claim", "new", "--file", name}, nil, io.Discard, io.Discard); c != 0 {
			t.Fatalf("claim new: exit %d", c)
		}
		return name
	}
	t.Setenv("XDG_CONFIG_HOME", dir)
	mine, other := key("mine"), key("other")
	made := vmFlags{claim: mine, raise: "home"}
	config, err := made.nodeConfig()
	if err != nil {
		t.Fatal(err)
	}
	disk, bare := filepath.Join(dir, "disk"), filepath.Join(dir, "bare")
	if err := errors.Join(nodevm.Disk(t.Context(), disk, image, 0, config, time.Unix(1e9, 0)), nodevm.Disk(t.Context(), bare, image, 0, nil, time.Unix(1e9, 0))); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(whole, append([]byte("hostname: alpha\n"), config...), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		f    vmFlags
		disk string
		ok   bool
	}{
		"the same":           {made, disk, true},
		"the claim alone":    {vmFlags{claim: mine}, disk, true},
		"another claim":      {vmFlags{claim: other}, disk, false},
		"another mesh":       {vmFlags{claim: mine, raise: "away"}, disk, false},
		"another node.yaml":  {vmFlags{config: whole}, disk, false},
		"a disk without one": {made, bare, false},
	} {
		config, err := c.f.nodeConfig()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.f.sameConfig(c.disk, config); (err == nil) != c.ok || err != nil && code(err) != exitRefused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
