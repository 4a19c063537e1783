package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kingpost/builder/inspect"
)

// newInspectCommand is `kingpost inspect`.
func newInspectCommand() *cobra.Command {
	var out *outputFlag
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Tell what is in a disk image, a root image, a UKI or a build's folder",
		Long: `Tell what is in a disk image (or a disk), a root image, a UKI, or the folder of a build: partitions, boot
entries, release, command line, kernel modules, programs and the seed.

Every root is verified whole against the root hash that its UKI pins. What does not verify is said, and
makes the exit code 1.`,
		Example: `  kingpost inspect out/vm
  kingpost inspect out/vm/disk.img -o json
  kingpost inspect out/vm/vm.efi`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := inspect.Path(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := out.print(cmd.OutOrStdout(), r, func(w io.Writer) error { return printReport(w, r) }); err != nil {
				return err
			}
			if p := r.Problems(); len(p) > 0 {
				return errors.New(strings.Join(p, "\n"))
			}
			return nil
		},
	}
	out = addOutput(cmd)
	return cmd
}

func printReport(w io.Writer, r *inspect.Report) error {
	fmt.Fprintf(w, "%s: %s, %s\n", r.Path, r.Kind, size(r.Size))
	var errs []error
	if len(r.Files) > 0 {
		t := newTable("FILE", "SIZE", "SHA256", "PROBLEM")
		for _, f := range r.Files {
			t.add(f.Name, size(f.Size), f.SHA256, f.Problem)
		}
		errs = append(errs, section(w, "files", t))
	}
	if len(r.Room) > 0 {
		t := newTable("PLACE", "SIZE", "USED", "MORE RELEASES")
		for _, p := range r.Room {
			t.add(p.Place, size(p.Size), size(p.Used), strconv.FormatInt(p.More, 10))
		}
		errs = append(errs, section(w, "room", t))
	}
	if r.Disk != nil {
		errs = append(errs, printDisk(w, r.Disk))
	}
	if r.Root != nil {
		errs = append(errs, printRoot(w, r.Root))
	}
	if r.UKI != nil {
		printUKI(w, "", r.UKI)
	}
	return errors.Join(errs...)
}

func section(w io.Writer, name string, t *table) error {
	fmt.Fprintf(w, "\n%s\n", name)
	return t.write(w)
}

func printDisk(w io.Writer, d *inspect.DiskReport) error {
	t := newTable("NUMBER", "PARTITION", "START", "SIZE", "GUID")
	for _, p := range d.Partitions {
		t.add(strconv.Itoa(p.Number), p.Name, size(p.Start), size(p.Size), p.GUID)
	}
	errs := []error{section(w, fmt.Sprintf("disk %s, sectors of %d bytes", d.GUID, d.SectorSize), t)}
	if len(d.ESP) > 0 {
		t = newTable("SIZE", "FILE")
		for _, f := range d.ESP {
			t.add(size(f.Size), f.Path)
		}
		errs = append(errs, section(w, "ESP", t))
	}
	for _, e := range d.Entries {
		fmt.Fprintf(w, "\nboot entry %s: %s (version %s)\n", e.File, e.Title, e.Version)
		if e.UKI != nil {
			printUKI(w, "  ", e.UKI)
		}
	}
	if d.NodeConfig != "" {
		fmt.Fprintf(w, "\nnode.yaml\n  %s\n", strings.ReplaceAll(strings.TrimSpace(d.NodeConfig), "\n", "\n  "))
	}
	for _, r := range d.Roots {
		errs = append(errs, printRoot(w, r))
	}
	return errors.Join(errs...)
}

func printUKI(w io.Writer, indent string, u *inspect.UKIReport) {
	fmt.Fprintf(w, "%srelease  %s\n%skernel   %s\n%scmdline  %s\n", indent, u.Release, indent, u.Kernel, indent, u.Cmdline)
	var parts []string
	for _, s := range u.Sections {
		parts = append(parts, fmt.Sprintf("%s %s", s.Name, size(s.Size)))
	}
	fmt.Fprintf(w, "%ssections %s\n", indent, strings.Join(parts, ", "))
}

func printRoot(w io.Writer, r *inspect.RootReport) error {
	where := "root"
	if r.Slot != "" {
		where = "root in slot " + r.Slot
	}
	state := "verified"
	switch {
	case !r.Verified:
		state = "NOT VERIFIED: " + r.Problem
	case !r.Pinned:
		state = "verified in itself; nothing here pins it"
	}
	fmt.Fprintf(w, "\n%s\n  hash     %s, tree at %d\n  state    %s\n", where, r.RootHash, r.HashOffset, state)
	if !r.Verified {
		return nil
	}
	fmt.Fprintf(w, "  release  %s %s of %s for %s\n  kernel   %s\n  modules  %d: %s\n", r.Release.Name, r.Release.Version, r.Release.Date,
		r.Release.Architecture, r.Kernel, len(r.Modules), strings.Join(r.Modules, " "))
	t := newTable("SIZE", "PROGRAM")
	for _, p := range r.Programs {
		t.add(size(p.Size), "/"+p.Path)
	}
	errs := []error{section(w, "programs", t)}
	t = newTable("SEED", "ARCH", "SIZE", "DIGEST")
	for _, s := range r.Seed {
		t.add(s.Name, s.Arch, size(s.Size), s.Digest)
	}
	return errors.Join(append(errs, section(w, "seed", t))...)
}
