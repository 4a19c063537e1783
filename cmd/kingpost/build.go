package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"kingpost/builder"
)

// newBuildCommand is `kingpost build`.
func newBuildCommand() *cobra.Command {
	var o builder.Options
	cmd := &cobra.Command{
		Use:   "build RECIPE",
		Short: "Build a node image from a recipe",
		Long: `Build a node image: root image with its verity tree, UKI, and a raw disk image that can be flashed or
started in a virtual machine. It needs no root, and the same recipe and lock give the same bytes.

The output is a folder named after the recipe. It appears whole when the build is done, and not before.
What it has in it the recipe says (outputs:), or --output; --output list tells what there is.`,
		Example: `  kingpost build images/vm.yaml
  kingpost build images/node.yaml --arch arm64 --out /srv/images
  kingpost build images/node.yaml --output iso,disk.img.zst
  kingpost build images/vm.yaml --output default --output qcow2
  kingpost build images/node.yaml --update-lock`,
		Args: func(cmd *cobra.Command, args []string) error {
			if slices.Equal(o.Outputs, []string{listOutputs}) {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return printOutputs(cmd.OutOrStdout())
			}
			o.Recipe = args[0]
			if o.Cache == "" {
				var err error
				if o.Cache, err = builder.DefaultCacheDir(); err != nil {
					return err
				}
			}
			if err := o.Check(); err != nil {
				return &exitError{exitUsage, err}
			}
			o.Report = newBuildReport(cmd.ErrOrStderr())
			start := time.Now()
			res, dir, err := builder.Build(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s for %s in %.1f s: %s\n", res.Name, res.Version, res.Architecture, time.Since(start).Seconds(),
				madeIn(dir, res))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "out", "folder below which the output goes, in a folder named after the recipe")
	f.StringVar(&o.Arch, "arch", "", "architecture, one of the recipe's (default this machine's)")
	f.StringVar(&o.Cache, "cache", "", "folder of what builds keep (default $KINGPOST_CACHE, else ~/.cache/kingpost)")
	f.StringVar(&o.Debs, "debs", "", "folder of .deb files to use before any is downloaded")
	f.StringVar(&o.Mirror, "mirror", "", "base URL of a Debian mirror to use instead of this machine's apt sources")
	f.StringSliceVar(&o.Outputs, "output", nil, `what to make, in place of the recipe's outputs: names with commas between them, or "list"`)
	f.BoolVar(&o.UpdateLock, "update-lock", false, "write the lock anew: today's packages, this machine's Go, the modules in go.sum")
	return cmd
}

// listOutputs is the word after --output that asks what there is.
const listOutputs = "list"

// printOutputs prints the outputs there are.
func printOutputs(w io.Writer) error {
	t := newTable("OUTPUT", "DEFAULT", "WHAT")
	for _, o := range builder.Outputs() {
		i := o.Info()
		made := ""
		if i.Default {
			made = "yes"
		}
		t.add(i.Name, made, i.About)
	}
	return t.write(w)
}

// madeIn says where a build's output is: the disk image where there is one, else its only file, else its folder.
func madeIn(dir string, res *builder.Result) string {
	for _, f := range res.Files {
		if f.Name == builder.FileDisk || len(res.Files) == 1 {
			return filepath.Join(dir, f.Name)
		}
	}
	return dir
}

// newBuildReport shows the phases: a bar on a terminal where one takes long, plain lines off one.
func newBuildReport(w io.Writer) builder.Reporter {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &barReport{w: w}
	}
	return &plainReport{w: w}
}

// plainReport prints a line for every phase that ended.
type plainReport struct {
	w  io.Writer
	mu sync.Mutex
}

type plainPhase struct {
	r     *plainReport
	name  string
	start time.Time
}

func (r *plainReport) Phase(name string) builder.Phase {
	return &plainPhase{r, name, time.Now()}
}

func (p *plainPhase) Progress(int64, int64) {}

func (p *plainPhase) Done(detail string, err error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	printPhase(p.r.w, p.name, detail, time.Since(p.start), err)
}

func printPhase(w io.Writer, name, detail string, took time.Duration, err error) {
	if err != nil {
		detail = "failed"
	}
	fmt.Fprintf(w, "%-12s %6.1f s  %s\n", name, took.Seconds(), detail)
}

// barReport shows the phase under way with a bar that goes when it ends, and leaves the same lines behind.
type barReport struct{ w io.Writer }

type barPhase struct {
	r     *barReport
	name  string
	start time.Time
	mpb   *mpb.Progress
	bar   *mpb.Bar
}

func (r *barReport) Phase(name string) builder.Phase {
	p := &barPhase{r: r, name: name, start: time.Now()}
	p.mpb = mpb.New(mpb.WithOutput(r.w), mpb.WithWidth(60))
	p.bar = p.mpb.AddBar(0,
		mpb.PrependDecorators(decor.Name(fmt.Sprintf("%-12s ", name)), decor.Elapsed(decor.ET_STYLE_GO, decor.WC{W: 8})),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5})),
		mpb.BarRemoveOnComplete())
	return p
}

func (p *barPhase) Progress(done, total int64) {
	if total > 0 {
		p.bar.SetTotal(total, false)
		p.bar.SetCurrent(done)
	}
}

func (p *barPhase) Done(detail string, err error) {
	p.bar.Abort(true)
	p.mpb.Wait()
	printPhase(p.r.w, p.name, detail, time.Since(p.start), err)
}
