// Package rxe runs RailStore on real verbs where there is no RDMA device: it
// boots Debian's kernel with the Soft-RoCE driver (rdma_rxe) under QEMU's
// software emulation and runs compiled test binaries inside.
//
// # The guest
//
// The guest's root is the host's, shared read-only over 9p, so that what is
// installed here (libibverbs, perftest, ip) is there too; /tmp, /run and
// /var/tmp are its own. A second share, /tmp/job, holds the binaries and what
// they leave behind. Two rails, each a veth pair with an rxe device at either
// end, connect the guest with itself (guest/topology.sh); the namespace "far" at
// the end of one more veth is for endpoints in user space, which cannot have UDP
// port 4791 where the kernel's rxe is.
//
// # The tests
//
// TestGuest boots once and forwards each test of each binary as a subtest.
// TestGuestSpeed measures beside perftest and prints a table; TestGuestReadSpeed
// reads objects over one rail and over two, beside UCX. The other tests run only
// inside, where RS_GUEST is set. What is missing on this host is installed when
// root, or named in the skip; RS_REQUIRE=rxe makes it a failure.
//
// Owns: the guest, its network, ibv_rc_pingpong's, perftest's and UCX's exchanges,
// the figures of reads. Imports: tests only. Goroutines: those of tests. Locks:
// none; a lock file in the cache folder keeps two guests from running at once.
package rxe
