package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// How a courier tries.
const (
	deliverTimeout = 30 * time.Second
	firstPause     = 200 * time.Millisecond
	longestPause   = 10 * time.Second
	// lookAgain is how often is looked whether a host still has what it took: one that lost its disk, or came back to an
	// older host program, may have lost it.
	lookAgain = time.Minute
)

// courier brings one node its newest declaration, as long as it takes. What it knows is in memory only:
// the next term delivers everything again anyway.
type courier struct {
	node string
	kick chan struct{} // of size 1: there is something newer

	mu        sync.Mutex
	delivered mesh.Version
	reason    string // why the newest is not delivered yet
	tries     int
}

// deliver wakes the couriers of nodes.
func (c *Controller) deliver(nodes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range nodes {
		k := c.couriers[node]
		if k == nil {
			k = &courier{node: node, kick: make(chan struct{}, 1)}
			c.couriers[node] = k
			c.wait.Go(func() { c.run(k) })
		}
		select {
		case k.kick <- struct{}{}:
		default:
		}
	}
}

// run is a courier's life.
func (c *Controller) run(k *courier) {
	pause := time.Duration(0)
	for {
		again := c.opt.LookAgain
		if pause > 0 {
			again = pause
		}
		timer := time.NewTimer(again)
		select {
		case <-c.ctx.Done():
		case <-k.kick:
			pause = 0
		case <-timer.C:
			if pause == 0 {
				c.look(k)
			}
		}
		timer.Stop()
		if c.ctx.Err() != nil {
			return
		}
		if c.try(k) {
			pause = 0
		} else {
			pause = min(max(2*pause, firstPause), longestPause)
		}
	}
}

// look forgets that a declaration was delivered when the host does not have it any more.
func (c *Controller) look(k *courier) {
	if k.node != c.opt.Node {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, deliverTimeout)
	defer cancel()
	st, err := c.opt.Host.Status(ctx)
	if err != nil {
		return // it is away; when it is back it is asked again
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if st.Declared.Less(k.delivered) {
		c.opt.Log.WithField("node", k.node).Warn("the host has lost its declaration, it is delivered again")
		k.delivered = mesh.Version{}
	}
}

// try delivers the newest declaration once, and reports whether there is nothing left to do.
func (c *Controller) try(k *courier) bool {
	var d mesh.Declaration
	err := c.db.view(func(t *txn) error {
		var ok bool
		var err error
		if d, ok, err = get[mesh.Declaration](t, bucketDeclared, k.node); err == nil && !ok {
			err = errors.New("it has no declaration")
		}
		return err
	})
	if err == nil && k.has(d.Version) {
		return true
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(c.ctx, deliverTimeout)
		err = c.hand(ctx, d)
		cancel()
	}
	log := c.opt.Log.WithFields(logrus.Fields{"node": k.node, "epoch": d.Epoch, "revision": d.Revision})
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.tries++
		reason := explain(err)
		if reason != k.reason {
			log.WithField("reason", reason).Warn("the host has not taken the declaration, trying again")
		}
		k.reason = reason
		return false
	}
	k.delivered, k.reason, k.tries = d.Version, "", 0
	log.WithField("resources", len(d.Resources)).Info("declaration delivered")
	return true
}

// hand gives d to the host of its node.
func (c *Controller) hand(ctx context.Context, d mesh.Declaration) error {
	if d.Node != c.opt.Node {
		return fmt.Errorf("%s has not joined: it cannot be reached yet", d.Node)
	}
	return c.opt.Host.Declare(ctx, &d)
}

func explain(err error) string {
	var he *hostapi.Error
	if errors.As(err, &he) {
		return "its host refuses: " + he.Message
	}
	return "its host is away: " + err.Error()
}

func (k *courier) has(v mesh.Version) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.delivered == v
}

// delivery says whether node has taken version v, and why not.
func (c *Controller) delivery(node string, v mesh.Version) (bool, string) {
	c.mu.Lock()
	k := c.couriers[node]
	c.mu.Unlock()
	if k == nil {
		return false, ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.delivered == v {
		return true, ""
	}
	if k.reason != "" {
		return false, fmt.Sprintf("%s (%d tries)", k.reason, k.tries)
	}
	return false, "being delivered"
}
