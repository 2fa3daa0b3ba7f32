package ps

import "sync"

// owners tells of which node each client is whose tokens the store remembers, so that they
// can go with it: a client that dies does not say so.
type owners struct {
	mu    sync.Mutex
	nodes map[uint64]string
}

// note remembers that a client's tokens come from a node. It allocates at the first one.
func (o *owners) note(client uint64, node string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nodes[client] == node {
		return
	}
	if o.nodes == nil {
		o.nodes = map[uint64]string{}
	}
	o.nodes[client] = node
}

func (o *owners) forget(client uint64) {
	o.mu.Lock()
	delete(o.nodes, client)
	o.mu.Unlock()
}

// take forgets the clients of a node and gives them.
func (o *owners) take(node string) (clients []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c, n := range o.nodes {
		if n == node {
			clients = append(clients, c)
			delete(o.nodes, c)
		}
	}
	return clients
}

// ClientGone gives back what is remembered of the tokens of a node that has left or whose
// lease has ended. Nothing of it is being served any more. A batch that it sends again
// all the same, coming back, is refused with ErrToken.
func (s *Service) ClientGone(node string) {
	for _, c := range s.owners.take(node) {
		s.cfg.Store.Expire(c)
	}
}
