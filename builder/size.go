package builder

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Size is a number of bytes, written "512MiB" in a recipe.
type Size int64

var sizeUnits = []struct {
	suffix string
	factor int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

// ParseSize reads a whole number with a binary unit: KiB, MiB, GiB or TiB.
func ParseSize(s string) (Size, error) {
	for _, u := range sizeUnits {
		num, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(num), 10, 64)
		if err != nil || n <= 0 || n > (1<<62)/u.factor {
			break
		}
		return Size(n * u.factor), nil
	}
	return 0, fmt.Errorf("%.40q is no size; write a whole number with KiB, MiB, GiB or TiB, such as 512MiB", s)
}

// UnmarshalYAML reads a size from a recipe.
func (s *Size) UnmarshalYAML(node ast.Node) error {
	text := node.String()
	if n, ok := node.(ast.ScalarNode); ok {
		text = fmt.Sprint(n.GetValue())
	}
	v, err := ParseSize(text)
	if err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: node.GetToken()}
	}
	*s = v
	return nil
}

// MarshalYAML writes s as it is read.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// String is s in the largest unit that divides it.
func (s Size) String() string {
	for i := len(sizeUnits) - 1; i >= 0; i-- {
		if u := sizeUnits[i]; int64(s)%u.factor == 0 && s != 0 {
			return fmt.Sprintf("%d%s", int64(s)/u.factor, u.suffix)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
