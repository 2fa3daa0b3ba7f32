package ctrl

import (
	"google.golang.org/grpc"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

const (
	// maxQueue is how many notices wait for one connection before all of them
	// are replaced by the whole state.
	maxQueue = 256
	// syncLanes is how many lanes go into one part of a sync.
	syncLanes = 2048
)

// watcher is the queue of one Watch stream. Server.mu guards it.
type watcher struct {
	inc    uint64
	queue  []Notice
	resync bool
	ended  error
	wake   chan struct{} // of capacity 1
}

func newWatcher(inc uint64) *watcher {
	return &watcher{inc: inc, resync: true, wake: make(chan struct{}, 1)}
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) add(n Notice) {
	switch {
	case w.resync:
		// The state that will be sent holds it.
	case len(w.queue) == maxQueue:
		w.queue, w.resync = nil, true
	default:
		w.queue = append(w.queue, n)
	}
	w.signal()
}

func (w *watcher) end(err error) {
	w.ended = err
	w.signal()
}

// errWatchedElsewhere ends a stream whose node has opened another: the first is
// what is left of a connection that broke.
var errWatchedElsewhere = wrapText(ErrClosed, "the node watches over another connection")

// watch sends to one stream until it, the membership or the server ends.
func (s *Server) watch(id NodeID, inc uint64, stream grpc.ServerStreamingServer[pb.WatchReply]) error {
	w := newWatcher(inc)
	s.mu.Lock()
	if _, err := s.reg.get(id, inc); err != nil {
		s.mu.Unlock()
		return err
	}
	if old := s.watchers[id]; old != nil {
		old.end(errWatchedElsewhere)
	}
	s.watchers[id] = w
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if s.watchers[id] == w {
			delete(s.watchers, id)
		}
		s.mu.Unlock()
	}()
	for {
		var snap Snapshot
		s.mu.Lock()
		err, queue, resync := w.ended, w.queue, w.resync
		w.queue, w.resync = nil, false
		if err == nil && resync {
			snap, err = s.reg.Snapshot(id, inc)
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if resync {
			err = sendSync(stream, s.reg.Instance(), snap)
		}
		for i := 0; i < len(queue) && err == nil; i++ {
			err = stream.Send(eventToPB(queue[i].Event))
		}
		if err != nil {
			return err
		}
		select {
		case <-w.wake:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.done:
			return ErrClosed
		}
	}
}

func sendSync(stream grpc.ServerStreamingServer[pb.WatchReply], instance uint64, snap Snapshot) error {
	part := &pb.WatchReply_Sync{Instance: instance, Rev: snap.Rev, Stop: snap.Stop}
	for _, p := range snap.Peers {
		part.Peers = append(part.Peers, viewToPB(p))
	}
	lanes := 0
	for _, o := range snap.Offers {
		if lanes += len(o.Lanes) + 1; lanes > syncLanes && len(part.Offers) > 0 {
			if err := stream.Send(&pb.WatchReply{Of: &pb.WatchReply_Sync_{Sync: part}}); err != nil {
				return err
			}
			part, lanes = &pb.WatchReply_Sync{Instance: instance, Rev: snap.Rev}, len(o.Lanes)+1
		}
		part.Offers = append(part.Offers, offerToPB(o))
	}
	part.Last = true
	return stream.Send(&pb.WatchReply{Of: &pb.WatchReply_Sync_{Sync: part}})
}

func eventToPB(e Event) *pb.WatchReply {
	switch e := e.(type) {
	case OfferReceived:
		return &pb.WatchReply{Of: &pb.WatchReply_Offer{Offer: offerToPB(&e.Offer)}}
	case PeerGone:
		return &pb.WatchReply{Of: &pb.WatchReply_Gone{Gone: viewToPB(PeerView(e))}}
	case Draining:
		return &pb.WatchReply{Of: &pb.WatchReply_Peer{Peer: viewToPB(PeerView{ID: e.ID, Incarnation: e.Incarnation, State: StateDraining, Reason: e.Reason})}}
	case PeerState:
		return &pb.WatchReply{Of: &pb.WatchReply_Peer{Peer: viewToPB(PeerView(e))}}
	case Stop:
		return &pb.WatchReply{Of: &pb.WatchReply_Stop{Stop: e.Reason}}
	}
	return &pb.WatchReply{} // Rejoined is made by clients only
}
