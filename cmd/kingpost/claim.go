package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh/tlsid"
)

func newClaimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "Make and show the key that claims nodes",
		Long: `The claim key is the operator's. A node whose node.yaml names it can be raised, joined or installed
by its holder alone.`,
		Example: "  kingpost claim new\n  kingpost claim show",
	}
	cmd.AddCommand(newClaimNewCommand(), newClaimShowCommand())
	return cmd
}

// claim is what is printed of a claim key: never the key itself.
type claim struct {
	Claim       string `json:"claim"` // the value for node.yaml
	Fingerprint string `json:"fingerprint"`
	File        string `json:"file"`
}

func printClaim(cmd *cobra.Command, out outputFlag, key ed25519.PrivateKey, file string) error {
	pub := key.Public().(ed25519.PublicKey)
	c := claim{tlsid.FormatPublicKey(pub), tlsid.Fingerprint(pub), file}
	return out.print(cmd.OutOrStdout(), c, func(w io.Writer) error {
		// The line alone, so that it can be appended to a node.yaml as it is.
		_, err := fmt.Fprintf(w, "claim: %s\n", c.Claim)
		return err
	})
}

func newClaimNewCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make an operator key and print its claim line for node.yaml",
		Long: `Makes an ed25519 key, keeps it readable by you alone, and prints the line that claims a node for it.
A key that is there already is never overwritten.`,
		Example: "  kingpost claim new >> node.yaml",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&file, "file", "", "where to keep the key (default: claim.key in the configuration folder)")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := openConfig()
		if err != nil {
			return err
		}
		name := c.claimFile(file)
		if st, err := os.Stat(name); err == nil && st.IsDir() {
			return usageError("make a claim key: %s is a folder; name the file, as in --file %s", name, filepath.Join(name, fileClaim))
		}
		if _, err := os.Lstat(name); err == nil {
			return refusedError("make a claim key: %s is there already, and nodes that it claimed need it; `kingpost claim show` prints its line, --file makes another one", name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make a claim key: %w", err)
		}
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return fmt.Errorf("make a claim key: %w", err)
		}
		if err := storeClaimKey(c, file, key); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "kept the key in %s; put this line into node.yaml on the node's ESP:\n", name)
		return printClaim(cmd, *out, key, name)
	}
	return cmd
}

// storeClaimKey keeps a new key in file, in the configuration folder where that is empty.
func storeClaimKey(c config, file string, key ed25519.PrivateKey) error {
	if file == "" {
		return c.write(tlsid.MarshalPrivateKey(key), fileClaim)
	}
	return atomicfile.Write(file, tlsid.MarshalPrivateKey(key), 0o600)
}

func newClaimShowCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{Use: "show", Short: "Print the claim line again", Example: "  kingpost claim show", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&file, "file", "", "the key (default: claim.key in the configuration folder)")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := openConfig()
		if err != nil {
			return err
		}
		key, err := c.claimKey(file)
		if err != nil {
			return err
		}
		return printClaim(cmd, *out, key, c.claimFile(file))
	}
	return cmd
}

func (c config) claimFile(file string) string {
	if file != "" {
		return file
	}
	return c.path(fileClaim)
}

// claimKey reads the operator's key.
func (c config) claimKey(file string) (ed25519.PrivateKey, error) {
	name := c.claimFile(file)
	b, err := readSmall(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the claim key is not there: %w; `kingpost claim new` makes one, --claim names another file", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the claim key: %w", err)
	}
	key, err := tlsid.ParsePrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("read the claim key %s: %w", name, err)
	}
	return key, nil
}
