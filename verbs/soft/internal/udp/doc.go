// Package udp sends and receives batches of UDP datagrams for the soft device:
// sendmmsg and recvmmsg over arrays that are made once, scatter-gather so that
// payload is never copied on the way out, and the two offloads of Linux that
// make large transfers cheap: UDP_SEGMENT (a train of packets leaves in one
// call) and UDP_GRO (a train arrives in one buffer).
//
// # Trains
//
// A train is a run of packets to one destination, all of one size but for the
// last, which may be smaller; at most MaxSegments packets and MaxTrain bytes.
// The kernel gives segment i of a train the IP identification i, and a datagram
// that is sent alone 0 (the sockets have IP_MTU_DISCOVER=DO). RoCE's ICRC
// covers the identification, so the check value of a packet can only be
// computed when its train is known: Batch.Send asks its Sealer for it then. For
// IPv6, which has no identification, the number means nothing.
//
// # Offloads
//
// Both are probed when the socket is opened and can be refused by Config.
// UDP_SEGMENT is turned off while running on the one errno that means that the
// device under the socket cannot do it (EIO), and the packets are sent again
// one by one with new check values. Some kernels mangle trains whose packets
// all have one size; NoEqualTail keeps from sending such.
//
// Owns: the socket, its options, the arrays of a Batch and of a Receiver, the
// Waiter with its epoll instance, eventfd and timer.
// Imports: the standard library and golang.org/x/sys/unix.
// Goroutines: none. Locks: none; a Batch and a Receiver have one user at a time,
// a Socket may be used by any number of them at once.
package udp
