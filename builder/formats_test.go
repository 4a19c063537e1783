package builder

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/testtool"
)

func outputNames(outputs []Output) []string {
	var names []string
	for _, o := range outputs {
		names = append(names, o.Info().Name)
	}
	return names
}

func TestChooseOutputs(t *testing.T) {
	byDefault := []string{"root.img", "uki", "direct", "disk.img"}
	for _, c := range []struct {
		name  string
		names []string
		want  []string
		err   string
	}{
		{"none", nil, byDefault, ""},
		{"default", []string{"default"}, byDefault, ""},
		{"one", []string{"uki"}, []string{"uki"}, ""},
		{"in their own order", []string{"disk.img.zst", "uki"}, []string{"uki", "disk.img.zst"}, ""},
		{"twice", []string{"uki", "uki"}, []string{"uki"}, ""},
		{"more than the default", []string{"disk.img.zst", "default", "uki"}, append(slices.Clone(byDefault), "disk.img.zst"), ""},
		{"unknown", []string{"uki", "floppy"}, nil, `no output "floppy"; there are root.img, uki,`},
		{"empty", []string{""}, nil, `no output ""`},
		{"list is no output", []string{"list"}, nil, `no output "list"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := chooseOutputs(c.names)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, %v", got, err)
				}
				return
			}
			if d := cmp.Diff(c.want, outputNames(got)); err != nil || d != "" {
				t.Errorf("%v\n%s", err, d)
			}
		})
	}
}

// TestOutputsApart has no two outputs write one file, but for the block map, and none without a name or a word for people.
func TestOutputsApart(t *testing.T) {
	by := map[string]string{}
	for _, o := range Outputs() {
		i := o.Info()
		if i.Name == "" || i.Name == DefaultOutputs || i.About == "" || strings.ContainsAny(i.Name, ", ") {
			t.Errorf("%+v", i)
		}
		for _, f := range o.Files("vm") {
			if by[f] != "" && f != FileMap {
				t.Errorf("%s is written by %s and %s", f, by[f], i.Name)
			}
			by[f] = i.Name
		}
	}
}

// TestCompress judges a frame by another program, and compares those that different numbers of CPUs made.
func TestCompress(t *testing.T) {
	zstd := testtool.Find(t, "zstd", "zstd")
	raw := make([]byte, 20<<20+77)
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(raw)/2; i++ {
		raw[i] = byte(r.IntN(7)) * byte(r.IntN(3))
	}
	var frames [][]byte
	for _, cpus := range []int{1, 2, 5, 0} {
		var b bytes.Buffer
		last := int64(0)
		if err := compress(t.Context(), &b, bytes.NewReader(raw), int64(len(raw)), cpus, func(done, total int64) { last = done }); err != nil {
			t.Fatal(err)
		}
		if last != int64(len(raw)) {
			t.Errorf("%d CPUs: progress ends at %d", cpus, last)
		}
		frames = append(frames, b.Bytes())
		if !bytes.Equal(frames[0], b.Bytes()) {
			t.Errorf("%d CPUs give another frame than one", cpus)
		}
	}
	cmd := exec.Command(zstd, "-dc", "--memory=16MB")
	cmd.Stdin = bytes.NewReader(frames[0])
	out, err := cmd.Output()
	if err != nil || !bytes.Equal(out, raw) {
		t.Errorf("zstd makes %d bytes of it, not the %d that were: %v", len(out), len(raw), err)
	}
	for _, size := range []int64{int64(len(raw)) - 1, int64(len(raw)) + 1} {
		if err := compress(t.Context(), io.Discard, bytes.NewReader(raw), size, 1, nil); err == nil {
			t.Errorf("%d bytes were taken for %d", len(raw), size)
		}
	}
}

// The table of outputs in docs/build.md has those that are not made by default, with their files, and nothing else.
func TestOutputsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/build.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| output | files | what |\n|---|---|---|\n")
	if !found {
		t.Fatal("docs/build.md has no table of outputs")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var names, files []string
	for row := range strings.Lines(table) {
		cells := strings.Split(row, " | ")
		for i, list := range []*[]string{&names, &files} {
			for j, s := range strings.Split(cells[i], "`") {
				if j%2 == 1 {
					*list = append(*list, s)
				}
			}
		}
	}
	var wantNames, wantFiles []string
	for _, o := range Outputs() {
		if !o.Info().Default {
			wantNames = append(wantNames, o.Info().Name)
			wantFiles = append(wantFiles, o.Files("vm")...)
		}
	}
	if d := cmp.Diff(wantNames, names); d != "" {
		t.Errorf("outputs (- there are, + said):\n%s", d)
	}
	if d := cmp.Diff(wantFiles, files); d != "" {
		t.Errorf("files (- written, + said):\n%s", d)
	}
}
