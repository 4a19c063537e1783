package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"kingpost/installer/flash/madeup"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kingpost": func() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScript runs the scripts of testdata/script against a node in this process. A script gets:
//
//	$NODE, $KEY   the node's address and the fingerprint of its key
//	claim         claims the node with $XDG_CONFIG_HOME/kingpost/claim.key
//	node WORD     bends the node: "other", "seed", "slow", "mend", ...; see fakeNode.bend
//	image FILE    makes a disk image that would boot
//	compressed FILE TO   compresses FILE
//	exits N CMD   runs CMD, which must exit with N
//	json          what the last command printed is one JSON value, and not null
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			n, err := startFakeNode(e.WorkDir)
			if err != nil {
				return err
			}
			e.Defer(n.close)
			e.Values["node"] = n
			e.Setenv("NODE", n.addr)
			e.Setenv("KEY", n.fingerprint())
			e.Setenv("XDG_CONFIG_HOME", e.WorkDir+"/config")
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"node": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Value("node").(*fakeNode).bend(args[0])
			},
			"claim": func(ts *testscript.TestScript, _ bool, args []string) {
				b, err := os.ReadFile(ts.Getenv("XDG_CONFIG_HOME") + "/kingpost/claim.key")
				ts.Check(err)
				ts.Check(ts.Value("node").(*fakeNode).claimBy(b))
			},
			"image": func(ts *testscript.TestScript, _ bool, args []string) {
				i, err := madeup.Make("0.2.0", 40<<20)
				ts.Check(err)
				f, err := os.Create(ts.MkAbs(args[0]))
				ts.Check(err)
				_, err = io.Copy(f, io.NewSectionReader(i.Disk, 0, i.Disk.Size()))
				ts.Check(errors.Join(err, f.Close()))
			},
			"compressed": func(ts *testscript.TestScript, _ bool, args []string) {
				b, err := os.ReadFile(ts.MkAbs(args[0]))
				ts.Check(err)
				z, err := zstd.NewWriter(nil)
				ts.Check(err)
				defer z.Close()
				ts.Check(os.WriteFile(ts.MkAbs(args[1]), z.EncodeAll(b, nil), 0o644))
			},
			"json": func(ts *testscript.TestScript, _ bool, _ []string) {
				var v any
				if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &v); err != nil || v == nil {
					ts.Fatalf("no JSON: %v", err)
				}
			},
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				err = ts.Exec(args[1], args[2:]...)
				got := 0
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					got = exit.ExitCode()
				} else {
					ts.Check(err)
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
		},
	})
}

// Every command says what it does, and shows how it is called.
func TestHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		t.Run(c.CommandPath(), func(t *testing.T) {
			if c.Short == "" || !strings.HasPrefix(c.Example, "  kingpost ") {
				t.Errorf("short %q, example %q", c.Short, c.Example)
			}
			for line := range strings.Lines(c.Example) {
				args := strings.Fields(strings.TrimSpace(line))
				about, _, err := c.Root().Find(args[1:])
				if err != nil || !strings.HasPrefix(about.CommandPath(), c.CommandPath()) {
					t.Errorf("the example %q is of another command", line)
				}
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
}
