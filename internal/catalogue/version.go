package catalogue

import (
	"cmp"
	"strings"
)

// compareVersions orders versions as semantic versioning 2.0.0, section 11, does, and is kind to what is
// none: numbers compare as numbers, anything else as text, and what has a suffix after a hyphen comes
// before what has none.
func compareVersions(a, b string) int {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	coreA, preA, hasA := strings.Cut(strings.TrimPrefix(a, "v"), "-")
	coreB, preB, hasB := strings.Cut(strings.TrimPrefix(b, "v"), "-")
	if c := compareParts(coreA, coreB, true); c != 0 {
		return c
	}
	switch {
	case hasA && !hasB:
		return -1
	case !hasA && hasB:
		return 1
	}
	return cmp.Or(compareParts(preA, preB, false), cmp.Compare(a, b))
}

// compareParts compares dot-separated parts; missing ones count as 0 in a core, and as less in a suffix.
func compareParts(a, b string, core bool) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		x, y := part(as, i, core), part(bs, i, core)
		if c := comparePart(x, y); c != 0 {
			return c
		}
	}
	return 0
}

func part(parts []string, i int, core bool) string {
	switch {
	case i < len(parts):
		return parts[i]
	case core:
		return "0"
	}
	return ""
}

func comparePart(a, b string) int {
	na, nb := digits(a), digits(b)
	switch {
	case na && nb:
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	case na != nb && a != "" && b != "":
		// A number comes before a text.
		if na {
			return -1
		}
		return 1
	}
	return cmp.Compare(a, b)
}

func digits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}
