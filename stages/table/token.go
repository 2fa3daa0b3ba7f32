package table

import "sync"

// Token names a batch of updates of a client, so that a retry of it is applied once. A
// client numbers its batches 1, 2, 3 ..., over all tables of the store. The zero Token
// names nothing: such a batch is applied each time.
//
// Of each client the last Config.TokenWindow numbers are remembered, counted from the
// highest; an older one is a *TokenError, because nobody knows any more whether it was
// applied. Clients are remembered until Forget or Expire; one more than Config.Clients is
// a *LimitError. Of an expired one its highest number is kept: a late batch of it is a
// *TokenError, and not applied twice. Snapshots have no tokens.
type Token struct {
	Client   uint64
	Sequence uint64
}

// What is remembered of a sequence.
const (
	tokenNew     = 0
	tokenRunning = 1
	tokenDone    = 2
	tokenPartial = 3 // plus how many positions of the batch were applied
)

type clients struct {
	mu     sync.Mutex
	ended  sync.Cond // some batch with a token
	window uint64
	most   int
	byID   map[uint64]*client

	expired map[uint64]uint64 // the highest number of those that expired
	order   []uint64          // of their expiry, round
	first   int               // of order
}

// keepExpired is how many of them are kept: those that expired last.
const keepExpired = 1 << 16

// client is the window of one client: of sequence q, seen[q%window].
type client struct {
	highest uint64
	base    uint64 // of numbers up to it nothing is known
	seen    []uint32
}

func (c *clients) open(most, window int) {
	c.ended.L = &c.mu
	c.most = most
	for c.window = 1; c.window < uint64(window); c.window *= 2 {
	}
	c.byID = make(map[uint64]*client)
	c.expired = make(map[uint64]uint64)
}

// begin asks for the right to apply the batch of a token, from position from on. done
// means that there is nothing left to do. While another call applies the same batch it
// waits: that one's end decides.
func (c *clients) begin(t Token) (from int, done bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		cl, ok := c.byID[t.Client]
		if !ok {
			if len(c.byID) >= c.most {
				return 0, false, &LimitError{Field: "clients", Need: 1, Used: int64(len(c.byID)), Limit: int64(c.most)}
			}
			base := c.expired[t.Client]
			if base > 0 && t.Sequence <= base {
				return 0, false, &TokenError{Token: t, Oldest: base + 1}
			}
			cl = &client{highest: base, base: base, seen: make([]uint32, c.window)}
			c.byID[t.Client] = cl
		}
		if cl.unknown(t.Sequence, c.window) {
			return 0, false, &TokenError{Token: t, Oldest: max(cl.oldest(c.window), cl.base+1)}
		}
		// Sequences that were left out are new: what their places remember is older than
		// the window.
		if t.Sequence > cl.highest {
			if t.Sequence-cl.highest >= c.window {
				clear(cl.seen)
			} else {
				for q := cl.highest + 1; q <= t.Sequence; q++ {
					cl.seen[q&(c.window-1)] = tokenNew
				}
			}
			cl.highest = t.Sequence
		}
		at := &cl.seen[t.Sequence&(c.window-1)]
		switch *at {
		case tokenNew:
			*at = tokenRunning
			return 0, false, nil
		case tokenDone:
			return 0, true, nil
		case tokenRunning:
			c.ended.Wait()
		default:
			from = int(*at - tokenPartial)
			*at = tokenRunning
			return from, false, nil
		}
	}
}

func (cl *client) oldest(window uint64) uint64 {
	if cl.highest < window {
		return 0
	}
	return cl.highest - window + 1
}

// unknown reports whether nothing is known of a sequence any more.
func (cl *client) unknown(sequence, window uint64) bool {
	return sequence < cl.oldest(window) || cl.base > 0 && sequence <= cl.base
}

// end tells how the batch of a token ended: whole, or with applied positions of it.
func (c *clients) end(t Token, whole bool, applied int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended.Broadcast()
	cl, ok := c.byID[t.Client]
	if !ok || cl.unknown(t.Sequence, c.window) {
		return // forgotten meanwhile
	}
	at := &cl.seen[t.Sequence&(c.window-1)]
	switch {
	case whole:
		*at = tokenDone
	case applied == 0:
		*at = tokenNew
	default:
		*at = tokenPartial + uint32(applied)
	}
}

// Forget forgets the tokens of a client that will send none any more; whether it was
// known.
func (s *Store) Forget(client uint64) bool {
	c := &s.clients
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.byID[client]
	delete(c.byID, client)
	return ok
}

// Expire gives back what is remembered of a client that seems to have ended without a
// word: its window, but for the highest number. Should it live and send one of those
// numbers again, it learns that nobody knows whether that one was applied.
func (s *Store) Expire(client uint64) {
	c := &s.clients
	c.mu.Lock()
	defer c.mu.Unlock()
	cl, ok := c.byID[client]
	if !ok {
		return
	}
	delete(c.byID, client)
	if _, again := c.expired[client]; !again {
		if len(c.order) < keepExpired {
			c.order = append(c.order, client)
		} else {
			delete(c.expired, c.order[c.first])
			c.order[c.first] = client
			c.first = (c.first + 1) % keepExpired
		}
	}
	c.expired[client] = cl.highest
}
