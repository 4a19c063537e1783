package mesh

import (
	"fmt"
	"slices"
)

// SystemAccounts are the accounts and groups of the node itself (its /etc/passwd and /etc/group), and toor, by custom a
// second name of uid 0. Nothing that is declared has one of them.
func SystemAccounts() []string { return []string{"root", "toor", "nobody", "nogroup"} }

// checkAccount accepts the name of an account: one of CheckName that begins with a letter, and none of SystemAccounts. So
// it can be no number, in whatever base: what reads an account takes a number for a uid before it looks for the name.
func checkAccount(s string) error {
	if err := CheckName(s); err != nil {
		return err
	}
	if slices.Contains(SystemAccounts(), s) {
		return fmt.Errorf("%q is refused; it is an account of the node itself, and nothing that is declared runs as one", s)
	}
	if s[0] < 'a' || s[0] > 'z' {
		return fmt.Errorf("%q is refused; an account is named, not numbered, and its name begins with a letter", s)
	}
	return nil
}
