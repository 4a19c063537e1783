package mesh

import (
	"errors"
	"fmt"
	"strings"
)

// maxProblems bounds how many problems one error tells.
const maxProblems = 20

// problems collects what is wrong, each with its place.
type problems struct {
	list []string
	more int
}

func (p *problems) add(path, format string, a ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, path+": "+fmt.Sprintf(format, a...))
}

// check adds err, if there is one, at path.
func (p *problems) check(path string, err error) {
	if err != nil {
		p.add(path, "%s", err)
	}
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	s := strings.Join(p.list, "\n")
	if p.more > 0 {
		s += fmt.Sprintf("\nand %d more", p.more)
	}
	return errors.New(s)
}
