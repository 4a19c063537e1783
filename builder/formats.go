package builder

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Output is one form in which a release can be had. Its bytes follow from the release alone: no clock, no chance, no
// name of the machine, and not the number of its CPUs.
type Output interface {
	Info() OutputInfo
	// Files are the files that Write makes for a recipe of that name, below the output folder and with slashes.
	Files(recipe string) []string
	// Write makes them. Its memory does not grow with the image. progress is called with bytes done of total. It
	// returns in a few words what came of it.
	Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error)
}

// OutputInfo is what there is to say of an output.
type OutputInfo struct {
	Name  string // in a recipe and after --output
	About string // for people, half a line
	// Default is set for those that are made where nothing else is asked for.
	Default bool
	// Data is set for those with a data partition in them, which mke2fs makes: another version of it may give other bytes.
	Data bool
}

// Outputs are all outputs, in the order in which they are made.
func Outputs() []Output {
	return slices.Concat([]Output{
		rootOutput{}, ukiOutput{}, directOutput{}, diskOutput{},
		zstOutput{}, netbootOutput{}, isoOutput{}, dataOutput{},
	}, vmOutputs(), []Output{disk4KOutput{}})
}

// DefaultOutputs is the word for the outputs that are made where nothing else is asked for.
const DefaultOutputs = "default"

// chooseOutputs returns the outputs with those names, each once, in the order of Outputs. None: the default ones.
func chooseOutputs(names []string) ([]Output, error) {
	if len(names) == 0 {
		names = []string{DefaultOutputs}
	}
	var out []Output
	var known []string
	left := slices.Clone(names)
	take := func(name string) bool {
		taken := slices.Contains(left, name)
		left = slices.DeleteFunc(left, func(n string) bool { return n == name })
		return taken
	}
	byDefault := take(DefaultOutputs)
	for _, o := range Outputs() {
		i := o.Info()
		known = append(known, i.Name)
		if take(i.Name) || byDefault && i.Default {
			out = append(out, o)
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("there is no output %.40q; there are %s, and %s, which is what is made where none is named",
			left[0], strings.Join(known, ", "), DefaultOutputs)
	}
	return out, nil
}

// holdsData reports whether a file of one of the outputs has a data partition in it.
func holdsData(outputs []Output, r *Recipe, file string) bool {
	return slices.ContainsFunc(outputs, func(o Output) bool {
		return o.Info().Data && slices.Contains(o.Files(r.Name), file)
	})
}
