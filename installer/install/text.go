package install

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"kingpost/internal/mesh/hostapi"
)

// Text writes a plan for people. The same plan gives the same bytes.
func Text(w io.Writer, d *hostapi.Disks) error {
	var b bytes.Buffer
	if len(d.Disks) == 0 {
		fmt.Fprintln(&b, "this machine has no disk")
	} else {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "DISK\tSIZE\tBUS\tSERIAL\tMODEL\tINSTALL")
		for _, x := range d.Disks {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", x.Path, diskSize(x.Size), or(x.Bus, "-"), or(x.Serial, "-"), or(x.Model, "-"), verdict(x))
		}
		t.Flush() // into memory
	}
	for _, x := range d.Disks {
		fmt.Fprintf(&b, "\n%s\n", x.Path)
		if k := x.Kingpost; k != nil {
			fmt.Fprintf(&b, "  Kingpost, disk %s, starts %s\n", k.DiskGUID, or(k.Starts, "nothing: "+k.Trouble))
		}
		fmt.Fprintf(&b, "  on it: %s\n", or(holdings(x.Contents), "nothing that is known"))
		for _, r := range x.Reasons {
			fmt.Fprintf(&b, "  %s: %s\n", r.Code, r.Text)
		}
	}
	b.WriteByte('\n')
	if d.Target == "" {
		if d.Reason != nil {
			fmt.Fprintf(&b, "no disk would be taken: %s\n", d.Reason.Text)
		}
	} else {
		fmt.Fprintf(&b, "%s would be taken:\n", d.Target)
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "#\tfirst LBA\tlast LBA\tsize\t  name")
		for _, q := range d.Partitions {
			kept := ""
			if q.Kept {
				kept = ", kept"
			}
			fmt.Fprintf(t, "%d\t%d\t%d\t%s\t%s\n", q.Number, q.FirstLBA, q.LastLBA, size(q.Size), "  "+q.Name+kept)
		}
		t.Flush() // into memory
	}
	for _, r := range d.Warnings {
		fmt.Fprintf(&b, "warning: %s: %s\n", r.Code, r.Text)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func diskSize(n int64) string {
	if n <= 0 {
		return "-"
	}
	return size(n)
}

func verdict(d hostapi.NodeDisk) string {
	switch {
	case d.Taken:
		return "taken"
	case d.Possible:
		return "no, but could be"
	}
	return "no"
}
