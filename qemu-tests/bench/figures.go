package main

import (
	"fmt"
	"os"

	"kingpost/qemu-tests/lab"
)

// bench is one run.
type bench struct {
	lab     *lab.Lab
	peer    *peer // mkosi's image, nil until somebody asked for it
	figures []figure
	missing []string
}

// figure is one measured value. Every limit is a most.
type figure struct {
	name  string
	value float64
	unit  string
	limit float64
	note  string // what it was made of, for people
}

func (f figure) String() string {
	verdict := "ok"
	if f.value > f.limit {
		verdict = "short"
	}
	return fmt.Sprintf("figure %s %s %s limit %s %s", f.name, number(f.value), f.unit, number(f.limit), verdict)
}

// number writes a value with as many digits as it is worth.
func number(v float64) string {
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.2f", v)
}

// say reports progress, on standard error: standard output is for the result.
func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// add adds a figure and says how it came about.
func (b *bench) add(name string, value float64, unit string, limit float64, note string, args ...any) {
	f := figure{name, value, unit, limit, fmt.Sprintf(note, args...)}
	b.figures = append(b.figures, f)
	b.say("%s: %s", f, f.note)
}

// miss says that something was not measured, and why.
func (b *bench) miss(name, why string) {
	b.missing = append(b.missing, fmt.Sprintf("not measured: %s: %s", name, why))
	b.say("%s", b.missing[len(b.missing)-1])
}

func (b *bench) print() {
	for _, f := range b.figures {
		fmt.Printf("%s: %s\n", f.name, f.note)
	}
	for _, m := range b.missing {
		fmt.Println(m)
	}
	for _, f := range b.figures {
		fmt.Println(f)
	}
}

func (b *bench) close() {
	if b.peer != nil {
		b.peer.close()
	}
}
