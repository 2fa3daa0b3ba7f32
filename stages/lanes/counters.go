package lanes

import "github.com/railstore/railstore/verbs/lane"

// Counters of all lanes and pollers.
func (c *Client) Counters() *lane.Counters { return c.cfg.Counters }
