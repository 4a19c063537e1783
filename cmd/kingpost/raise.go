package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

// raiseOptions are the flags of `kingpost raise`.
type raiseOptions struct {
	mesh    string
	key     string
	claim   string
	modules []string
	trust   bool
	replace bool
	wait    bool
	timeout time.Duration
}

func newRaiseCommand() *cobra.Command {
	var o raiseOptions
	cmd := &cobra.Command{
		Use:   "raise ADDRESS --mesh NAME",
		Short: "Make a mesh out of an installed node",
		Long: `Has the node at ADDRESS raise a mesh, and shows how that goes. The raise happens on the node: it goes on
after Ctrl-C and after a power cut, and the same command follows it again.

The node is known by the fingerprint of its key, which its console shows (--key). Without --key you are
shown the key that answers and asked. The node must be claimed by your claim key ("kingpost claim new").

The operator's credentials are kept as a context named after the mesh, which every later command uses.
Exits with 3 when the node refuses: it belongs to another mesh or key, its preflight says no, or the mesh is
raised already and --module asks for what only "kingpost module push" can do then. A node
whose preflight said no goes on by itself when the cause is gone; --wait stays and watches.`,
		Example: `  kingpost raise 192.168.1.20 --mesh home --key SHA256:47DEQpj8HBSa...
  kingpost raise 127.0.0.1:7443 --mesh test --claim claim.key --module controller/module.json`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.mesh, "mesh", "", "the name of the mesh")
	f.StringVar(&o.key, "key", "", "the fingerprint of the node's key, SHA256:...")
	f.StringVar(&o.claim, "claim", "", "the claim key (default: claim.key in the configuration folder)")
	f.StringArrayVar(&o.modules, "module", nil, "a module.json in place of the seed's of the same name; may be given many times")
	f.BoolVar(&o.trust, "trust-first", false, "believe whatever key the node shows now, instead of --key")
	f.BoolVar(&o.replace, "replace", false, "replace a context of this name that belongs to another node")
	f.BoolVar(&o.wait, "wait", false, "keep watching when preflight refuses, until the cause is gone")
	f.DurationVar(&o.timeout, "connect-timeout", 2*time.Minute, "how long to wait for the node to answer at first")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runRaise(cmd, args[0], o, *out)
	}
	return cmd
}

func runRaise(cmd *cobra.Command, target string, o raiseOptions, out outputFlag) error {
	if o.mesh == "" {
		return usageError("--mesh is missing: the name of the mesh to raise")
	}
	if err := mesh.CheckName(o.mesh); err != nil {
		return usageError("--mesh: %v", err)
	}
	if o.key != "" && !tlsid.IsFingerprint(o.key) {
		return usageError("--key %q is no fingerprint: it is SHA256: and 43 characters, as the node's console shows it in the line `node NAME key SHA256:...`", o.key)
	}
	addr, err := address(target)
	if err != nil {
		return err
	}
	manifests, err := readManifests(o.modules)
	if err != nil {
		return err
	}
	c, err := openConfig()
	if err != nil {
		return err
	}
	claim, err := c.claimKey(o.claim)
	if err != nil {
		return err
	}
	r := &raising{cmd: cmd, cfg: c, opt: o, name: contextName(cmd), addr: addr, claim: claim, progress: newProgress(cmd.ErrOrStderr())}
	if r.name == "" {
		r.name = o.mesh
	}
	return r.run(cmd.Context(), manifests, out)
}

func readManifests(files []string) ([]mesh.Manifest, error) {
	var out []mesh.Manifest
	for _, name := range files {
		m, err := readManifest(name)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func readManifest(name string) (mesh.Manifest, error) {
	f, err := os.Open(name)
	if err != nil {
		return mesh.Manifest{}, fmt.Errorf("read the manifest: %w", err)
	}
	defer f.Close()
	m, err := mesh.DecodeManifest(f)
	if err != nil {
		return mesh.Manifest{}, fmt.Errorf("read the manifest %s: %w", name, err)
	}
	return m, nil
}

// raising is one run of the command.
type raising struct {
	cmd      *cobra.Command
	cfg      config
	opt      raiseOptions
	name     string // of the context
	addr     string
	claim    ed25519.PrivateKey
	key      string // fingerprint of the node's key
	client   *hostapi.Client
	node     *hostapi.Node
	kept     bool // the context is stored
	progress progress
}

func (r *raising) run(ctx context.Context, manifests []mesh.Manifest, out outputFlag) error {
	defer r.progress.close()
	if err := r.meet(ctx); err != nil {
		return err
	}
	defer r.client.Close()
	if err := r.checkContext(); err != nil {
		return err
	}
	st, err := r.client.StartRaise(ctx, hostapi.RaiseRequest{Mesh: r.opt.mesh, Manifests: manifests})
	if err != nil {
		return r.refusal(err)
	}
	already := st.State == "done"
	if !already {
		if st, err = r.follow(ctx, *st); err != nil {
			return err
		}
	}
	if err := r.keep(*st); err != nil {
		return err
	}
	r.progress.close()
	if already && len(manifests) > 0 {
		var names []string
		for _, m := range manifests {
			names = append(names, m.Module)
		}
		return refusedError("raise: the mesh %s was raised already, and --module (%s) was not used: its modules are with the controller now. Bring them in by `kingpost module push %s`",
			st.Mesh, strings.Join(names, ", "), strings.Join(r.opt.modules, "`, `kingpost module push "))
	}
	return r.summary(ctx, *st, already, out)
}

// meet learns the node's key and asks it who it is, as long as it does not answer yet.
func (r *raising) meet(ctx context.Context) error {
	r.key = r.opt.key
	if r.key == "" {
		err := r.patient(ctx, func() (err error) { r.key, err = serverKey(ctx, r.addr); return err })
		if err != nil {
			return fmt.Errorf("ask the node for its key: %w; %s", err, r.booted())
		}
		if err := r.confirmKey(); err != nil {
			return err
		}
	}
	cert, err := tlsid.SelfSigned(r.claim, "operator")
	if err != nil {
		return err
	}
	r.client, err = hostapi.Dial(r.addr, hostapi.Options{NodeKey: r.key, Key: &cert})
	if err != nil {
		return err
	}
	err = r.patient(ctx, func() (err error) { r.node, err = r.client.Node(ctx); return err })
	var pin *tlsid.PinError
	if errors.As(err, &pin) {
		return &exitError{exitRefused, fmt.Errorf("%s: %w", r.addr, pin)}
	}
	if err != nil {
		return fmt.Errorf("reach the node: %w; %s", err, r.booted())
	}
	return nil
}

// booted asks what is to be seen where a node does not answer.
func (r *raising) booted() string {
	return fmt.Sprintf("is it booted, and is %s its address and port? Once it is up, its console shows the line `api https://ADDRESS:%d`", r.addr, mesh.PortAPI)
}

// patient retries while nobody answers, for as long as the flag says.
func (r *raising) patient(ctx context.Context, ask func() error) error {
	deadline := time.Now().Add(r.opt.timeout)
	for said := false; ; said = true {
		err := ask()
		if !unanswered(err) || time.Now().After(deadline) {
			return err
		}
		if !said {
			r.progress.note("waiting up to %v for the node to answer: %v; %s", r.opt.timeout, err, r.booted())
		}
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// confirmKey has a person compare the key with the node's console.
func (r *raising) confirmKey() error {
	if r.opt.trust {
		r.progress.note("believing the node's key %s", r.key)
		return nil
	}
	in := r.cmd.InOrStdin()
	if !isTerminal(in) {
		return usageError("--key is missing: compare %s with the node key on the node's console, and give it as --key", r.key)
	}
	fmt.Fprintf(r.cmd.ErrOrStderr(), "The node at %s has the key\n\n  %s\n\nIs that the node key on its console? [y/N] ", r.addr, r.key)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && err != io.EOF {
		return fmt.Errorf("read the answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return refusedError("raise: the node's key was not confirmed; nothing was changed")
	}
	return nil
}

// checkContext refuses, before anything happens, to overwrite the credentials of another node.
func (r *raising) checkContext() error {
	f, err := r.cfg.load()
	if err != nil {
		return err
	}
	old := f.find(r.name)
	if old == nil || tlsid.SameFingerprint(old.Key, r.key) || r.opt.replace {
		return nil
	}
	return refusedError("raise: the context %s belongs to the node %s at %s (%s), and its credentials would be lost; choose another name by --context, or add --replace",
		old.Name, old.Node, old.Address, old.Key)
}

// refusal gives the node's refusals their exit code.
func (r *raising) refusal(err error) error {
	var e *hostapi.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return refusedError("the node does not let this key raise it: %w\nNothing was changed. The claim in its node.yaml says whose node it is; --claim names the file of that key here", err)
	case http.StatusConflict:
		return refusedError("the node refuses the raise: %w\nNothing was changed", err)
	}
	return err
}

// errStop ends a stream of statuses that says enough.
var errStop = errors.New("enough")

// follow shows the raise until it has ended, through reboots of the node and cuts of the network.
func (r *raising) follow(ctx context.Context, st hostapi.RaiseStatus) (*hostapi.RaiseStatus, error) {
	r.progress.show(st)
	lost := false
	for {
		err := r.client.FollowRaise(ctx, func(s hostapi.RaiseStatus) error {
			lost = false
			st = s
			r.progress.show(s)
			// As soon as there are credentials: Ctrl-C must not lose them.
			if err := r.keep(s); err != nil {
				return err
			}
			if ended(s) || s.State == "refused" && !r.opt.wait {
				return errStop
			}
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return nil, r.left()
		case ended(st):
			return r.ended(st)
		case st.State == "refused" && !r.opt.wait:
			return nil, refusedError("preflight refused: %s\nNothing was changed. The node goes on by itself when the cause is gone; `kingpost raise %s --mesh %s` follows it", st.Steps[0].Reason, r.addr, r.opt.mesh)
		case err != nil && !unanswered(err):
			return nil, r.refusal(err)
		}
		if !lost {
			r.progress.note("the node does not answer; the raise goes on there, waiting for it")
			lost = true
		}
		if !sleep(ctx, time.Second) {
			return nil, r.left()
		}
	}
}

func ended(s hostapi.RaiseStatus) bool { return s.State == "done" || s.State == "failed" }

func (r *raising) ended(st hostapi.RaiseStatus) (*hostapi.RaiseStatus, error) {
	if st.State == "done" {
		return &st, nil
	}
	s := st.Steps[st.Step-1]
	return nil, fmt.Errorf("the raise gave up for now in step %d (%s): %s; what was reached stays, and the same command goes on from there", s.Number, s.Name, s.Reason)
}

// left is what Ctrl-C leaves behind.
func (r *raising) left() error {
	r.progress.close()
	again := fmt.Sprintf("`kingpost raise %s --mesh %s` follows it again", r.addr, r.opt.mesh)
	return fmt.Errorf("stopped watching; the raise goes on on the node, and %s", again)
}

// keep stores the context once there is a certificate.
func (r *raising) keep(st hostapi.RaiseStatus) error {
	if r.kept || st.Certificate == "" || st.CA == "" {
		return nil
	}
	err := r.cfg.put(meshContext{Name: r.name, Mesh: st.Mesh, Node: r.node.Name, Address: r.addr, Key: r.key},
		[]byte(st.Certificate), tlsid.MarshalPrivateKey(r.claim), []byte(st.CA))
	if err != nil {
		return fmt.Errorf("keep the credentials: %w", err)
	}
	r.kept = true
	return nil
}

// raised is what `kingpost raise -o json` prints.
type raised struct {
	Already bool                `json:"already"` // it was raised before
	Context string              `json:"context"`
	Store   string              `json:"store"`
	Broker  string              `json:"broker"`
	Raise   hostapi.RaiseStatus `json:"raise"`
	Status  *hostapi.Status     `json:"status,omitempty"`
}

func (r *raising) summary(ctx context.Context, st hostapi.RaiseStatus, already bool, out outputFlag) error {
	s := raised{Already: already, Context: r.name, Raise: st}
	_, client, err := r.cfg.dial(r.name)
	if err != nil {
		return err
	}
	defer client.Close()
	var node *hostapi.Node
	if s.Status, err = client.Status(ctx); err == nil {
		node, err = client.Node(ctx)
	}
	if err != nil {
		return fmt.Errorf("the mesh is raised, but its node does not answer with the new credentials: %w", err)
	}
	host := nodeHost(r.addr, node)
	s.Store = "https://" + net.JoinHostPort(host, strconv.Itoa(mesh.PortStore))
	s.Broker = "tls://" + net.JoinHostPort(host, strconv.Itoa(mesh.PortNATS))
	return out.print(r.cmd.OutOrStdout(), s, func(w io.Writer) error {
		how := "is raised"
		if already {
			how = "was raised already"
		}
		fmt.Fprintf(w, "the mesh %s %s; its control-node is %s\n\n", st.Mesh, how, r.node.Name)
		if err := resourcesTable(w, s.Status.Resources, node.Time); err != nil {
			return err
		}
		fmt.Fprintln(w)
		return lines(w, "context", r.name+", in "+r.cfg.credentials(r.name), "API", "https://"+r.addr,
			"store", s.Store, "broker", s.Broker, "next", "kingpost status", "", "kingpost call controller status")
	})
}

// nodeHost is where the node's other ports are: at the address that it was reached by, except through a
// forwarded port of this machine.
func nodeHost(addr string, n *hostapi.Node) string {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (ip == nil && host != "localhost" || ip != nil && !ip.IsLoopback()) {
		return host
	}
	for _, a := range n.Addresses {
		if ip, _, err := net.ParseCIDR(a); err == nil {
			return ip.String()
		}
		if net.ParseIP(a) != nil {
			return a
		}
	}
	return host
}
