package component

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"kingpost/internal/mesh"
)

func TestRun(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(100) })
	env := map[string]string{mesh.EnvMesh: "home", mesh.EnvEpoch: "7", mesh.EnvSeatSocket: "/s"}
	tests := []struct {
		name   string
		args   []string
		env    map[string]string
		err    error // of Serve
		code   int
		stdout string
		stderr string
	}{
		{"serve", []string{"serve"}, env, nil, 0, "", "mesh-x stopped"},
		{"serve with state", []string{"serve", "--state", "/elsewhere", "--log", "debug"}, env, nil, 0, "", "mesh-x stopped"},
		{"failure", []string{"serve"}, env, errors.New("the disk is gone"), 1, "", "the disk is gone"},
		{"help", []string{"--help"}, nil, nil, 0, "Usage:", ""},
		{"help of serve", []string{"serve", "--help"}, nil, nil, 0, "--state FOLDER", ""},
		{"nothing", nil, nil, nil, 2, "", "Usage:"},
		{"unknown command", []string{"run"}, nil, nil, 2, "", "Usage:"},
		{"unknown flag", []string{"serve", "--fast"}, nil, nil, 2, "", "-fast"},
		{"argument", []string{"serve", "now"}, nil, nil, 2, "", `"now"`},
		{"unknown level", []string{"serve", "--log", "loud"}, nil, nil, 2, "", "loud"},
		{"no epoch", []string{"serve"}, map[string]string{mesh.EnvEpoch: "-1"}, nil, 1, "", "KINGPOST_EPOCH"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got *Run
			c := Component{Name: "mesh-x", Summary: "does x", State: "/var/lib/x", Serve: func(_ context.Context, r Run) error { got = &r; return tt.err }}
			var stdout, stderr bytes.Buffer
			code := c.run(t.Context(), tt.args, func(k string) string { return tt.env[k] }, &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Fatalf("code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
			}
			if tt.code == 0 && tt.stdout == "" && (got == nil || got.Epoch != 7 || got.SeatSocket != "/s" || got.State == "") {
				t.Fatalf("served with %+v", got)
			}
		})
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	release, err := Lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Lock(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Fatalf("locked twice: %v", err)
	}
	release()
	release, err = Lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestProgram(t *testing.T) {
	a, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Program(); err != nil || a != b || len(a) < 10 {
		t.Fatalf("%q, %q, %v", a, b, err)
	}
}
