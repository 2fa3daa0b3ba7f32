// Package soft is the provider that needs no RDMA device: an endpoint of the
// reliable connection service over RoCE v2 in user space. A device is one UDP
// socket on one address of this host; a rail is a device.
//
// # Names
//
// A device is named ADDR[:PORT], IPv4 or IPv6 ([ADDR]:PORT or ADDR%ZONE). With a
// port it listens exactly there (4791 is RoCE's own, and free where the kernel's
// rdma_rxe is not loaded); without one it takes any free port, which
// PortAttr.UDPPort tells and which the peer puts into AV.UDPPort.
//
// # How a packet travels
//
// PostSend takes the QP's lock, queues the requests in the protocol (internal/rc),
// and sends what the window allows in the caller's own goroutine: headers,
// pieces of registered memory and check values go to the kernel as one list, a
// train of up to 64 packets a call (internal/udp). Received packets are taken by
// whoever holds the receive lock: the device's goroutine, or a goroutine that
// calls Progress or polls an empty CQ. It finds the QP by number, compares the
// sender's address, checks the ICRC, and steps the protocol under the QP's lock;
// the payload is copied once, from the receive buffer to its place.
//
// A goroutine that polls without pause makes the device's goroutine leave the
// socket alone, so that arriving packets wake nobody; when the polling ends
// (Arm says so; else a lease runs out within a millisecond) it comes back. The
// answer to a packet that comes alone is held back until there is nothing to
// receive, so that what a program does with the packet comes first, and the request
// that it may send takes the answer along.
//
// An idle device uses no CPU. Its goroutine sleeps in Go's network poller, on an epoll
// instance that gathers the socket, a timer, link changes and a way to be woken
// (udp.Waiter). After traffic it polls for a moment first.
//
// # ICRC and identification
//
// IPv4's identification is inside the ICRC and a UDP socket does not see it. It is
// guessed as the packet's place in its train and, failing that, solved for from
// the ICRC itself. From a peer that is a soft device (its UDP port is not 4791)
// only numbers that a train can have are taken, so 26 of the 32 bits check; from
// others (rxe counts identifications up) any, which leaves 16. Options can fix
// either policy.
//
// # Memory
//
// Keys hold the index of the MR, whether they are local or remote, and a
// generation byte, so that a key of a closed MR is refused. Looking one up takes
// no lock. MR.Close takes the region out of the table and then passes through
// the lock of every QP of its PD: no packet reaches the memory after that.
//
// # Faults
//
// A driver has a script of faults (Options.Faults, Driver.AddFault), and each of its
// devices a player of it. The player is behind device.faults, which is nil while
// there is nothing to play. It judges packets where they come in and go out,
// completions where they enter a queue, and calls where they enter the provider.
// Packets that it holds back are copies, in queues that the device's timers look
// after; payload that is late is a copy, too, on its QP's list, and lands under the
// QP's lock when its region is still in the table. Closing the device drops the
// former, closing the QP lands the latter. See docs/faults.md.
//
// Owns: devices with their sockets, MR, QP and CQ tables, and one goroutine each.
// Imports: verbs and the packages beneath this one.
// Goroutines: device.run, one per device, waited for by its Close.
// Locks, in the order they are taken: device.rx, qp.mu, cq.mu; script.mu comes after
// qp.mu and before the MR table's lock and device.timerMu; pd.mu, device.mu,
// peers.mu, the table locks and device.timerMu are leaves and never held while
// another is taken. Under -race registered memory is invisible to the detector because the
// kernel maps it.
package soft
