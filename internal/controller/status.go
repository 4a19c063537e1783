package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
)

// hostTimeout bounds how long a status waits for a host: it must answer also while a host does not.
const hostTimeout = 3 * time.Second

// bad orders the states of a resource from the best to the worst; what is not here is in between.
var bad = [...]string{"healthy", "running", "present", "done", "starting", "unready", "fetching", "waiting", "stopping", "backoff", "failed", "held"}

// Status is the mesh at a glance: what is wanted beside what the hosts say.
func (c *Controller) Status(ctx context.Context) (*verbs.StatusResult, error) {
	res := &verbs.StatusResult{
		Mesh: c.opt.Mesh, Node: c.opt.Node, Epoch: c.opt.Epoch,
		Nodes: []verbs.NodeStatus{}, Modules: []verbs.ModuleStatus{}, Seats: []verbs.SeatStatus{},
	}
	w, nodes, err := c.read(res)
	if err != nil {
		return nil, err
	}
	res.Settled = res.Declaring
	for _, n := range nodes {
		c.observe(ctx, &n)
		if !n.Delivered || n.Host == nil || !n.Host.Settled {
			res.Settled = false
		}
		res.Nodes = append(res.Nodes, n)
	}
	states := statesOf(res.Nodes)
	for _, m := range w.modules {
		res.Modules = append(res.Modules, m.status(states))
	}
	for _, h := range w.holders(current) {
		res.Seats = append(res.Seats, verbs.SeatStatus{Seat: h.seat, Node: h.node, Key: h.key, State: states[h.node+" "+h.key].State})
	}
	res.Held = append(res.Held, w.held(res)...)
	return res, nil
}

// read takes one consistent look at the state.
func (c *Controller) read(res *verbs.StatusResult) (*world, []verbs.NodeStatus, error) {
	var w *world
	var nodes []verbs.NodeStatus
	err := c.db.view(func(t *txn) (err error) {
		res.Revision, res.Declaring = t.meta.Revision, t.meta.Declaring
		if w, err = t.world(); err != nil {
			return err
		}
		for _, name := range w.nodeNames() {
			d, declared, err := get[mesh.Declaration](t, bucketDeclared, name)
			if err != nil {
				return err
			}
			n := verbs.NodeStatus{Name: name, Arch: w.nodes[name].Arch, Control: w.nodes[name].Control, Declared: d.Version}
			if declared {
				n.Delivered, n.Reason = c.delivery(name, d.Version)
			} else {
				n.Reason = "nothing is declared for it yet"
			}
			nodes = append(nodes, n)
		}
		return nil
	})
	return w, nodes, err
}

// observe asks a node's host.
func (c *Controller) observe(ctx context.Context, n *verbs.NodeStatus) {
	if n.Name != c.opt.Node {
		return // hand says why
	}
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	st, err := c.opt.Host.Status(ctx)
	if err != nil {
		if n.Reason == "" {
			n.Reason = explain(err)
		}
		return
	}
	n.Host = st
	if n.Delivered && n.Reason == "" && !st.Settled {
		n.Reason = unsettled(st)
	}
}

// unsettled names the first resource that is not as declared.
func unsettled(st *hostapi.Status) string {
	for _, r := range st.Resources {
		if r.Reason != "" {
			return fmt.Sprintf("%s is %s: %s", r.Key, r.State, r.Reason)
		}
	}
	return "its host is still applying what is declared"
}

// statesOf maps "NODE MODULE/ID" to what the node's host says.
func statesOf(nodes []verbs.NodeStatus) map[string]hostapi.ResourceStatus {
	states := map[string]hostapi.ResourceStatus{}
	for _, n := range nodes {
		if n.Host == nil {
			continue
		}
		for _, r := range n.Host.Resources {
			states[n.Name+" "+r.Key] = r
		}
	}
	return states
}

func (m *module) status(states map[string]hostapi.ResourceStatus) verbs.ModuleStatus {
	s := verbs.ModuleStatus{Module: m.Name, Current: m.Current, Latest: m.Latest, Placement: m.Placement, Resources: []string{}, State: "declared"}
	v := m.current
	if v == nil {
		v = m.latest
	}
	s.Version, s.Description = v.Manifest.Version, v.Manifest.Description
	worst := -1
	for _, r := range v.Manifest.Resources {
		s.Resources = append(s.Resources, fmt.Sprintf("%s (%s)", r.ID, r.Type))
		s.Seats = append(s.Seats, r.Seats...)
		for _, node := range m.Placement {
			if st, ok := states[node+" "+m.Name+"/"+r.ID]; ok {
				worst = max(worst, slices.Index(bad[:], st.State))
			}
		}
	}
	slices.Sort(s.Seats)
	if worst >= 0 {
		s.State = bad[worst]
	}
	if m.current == nil {
		s.State = "held"
	}
	if len(m.Placement) == 0 {
		s.State = "not placed"
	}
	return s
}

// held lists what waits for somebody.
func (w *world) held(res *verbs.StatusResult) []verbs.Held {
	var out []verbs.Held
	for _, m := range w.modules {
		if m.Current != m.Latest {
			out = append(out, verbs.Held{What: m.Name, Why: fmt.Sprintf("version %d waits for `declare`", m.Latest)})
		}
	}
	for _, n := range res.Nodes {
		if !n.Delivered && n.Declared != (mesh.Version{}) {
			out = append(out, verbs.Held{What: "node " + n.Name, Why: n.Reason})
		}
		if n.Host == nil {
			continue
		}
		for _, r := range n.Host.Resources {
			if r.State == "held" {
				out = append(out, verbs.Held{What: r.Key + " on " + n.Name, Why: r.Reason})
			}
		}
	}
	if !res.Declaring && len(w.modules) > 0 {
		out = append(out, verbs.Held{What: "node " + w.control, Why: "nothing is declared before the first `declare`"})
	}
	return out
}

// Nodes lists the nodes with what their hosts report.
func (c *Controller) Nodes(ctx context.Context) ([]verbs.NodeStatus, error) {
	var res verbs.StatusResult
	_, nodes, err := c.read(&res)
	for i := range nodes {
		c.observe(ctx, &nodes[i])
	}
	return nodes, err
}

// Modules lists the modules; one of them with manifests and history when it is named.
func (c *Controller) Modules(ctx context.Context, params *verbs.ModulesParams) (*verbs.ModulesResult, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	states := statesOf(nodes)
	res := &verbs.ModulesResult{Modules: []verbs.ModuleDetail{}}
	err = c.db.view(func(t *txn) error {
		w, err := t.world()
		if err != nil {
			return err
		}
		for _, m := range w.modules {
			if params.Module != "" && params.Module != m.Name {
				continue
			}
			v := m.current
			if v == nil {
				v = m.latest
			}
			d := verbs.ModuleDetail{ModuleStatus: m.status(states), Digests: v.Digests}
			history, err := t.history(m.Name)
			if err != nil {
				return err
			}
			for _, v := range history {
				mv := verbs.ModuleVersion{Number: v.Number, At: v.At, By: v.By, Version: v.Manifest.Version, SHA256: v.SHA256}
				if params.Module != "" {
					mv.Digests, mv.Manifest = v.Digests, &v.Manifest
				}
				d.History = append(d.History, mv)
			}
			res.Modules = append(res.Modules, d)
		}
		return nil
	})
	if err == nil && params.Module != "" && len(res.Modules) == 0 {
		return nil, notFoundModule(params.Module, nil)
	}
	return res, err
}

func names(modules []module) string {
	var ns []string
	for _, m := range modules {
		ns = append(ns, m.Name)
	}
	return strings.Join(ns, ", ")
}
