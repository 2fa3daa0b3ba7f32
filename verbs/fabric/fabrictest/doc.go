// Package fabrictest makes sysfs trees of hosts with RDMA devices from short
// descriptions, so that tests need no devices and the repository no thousand
// one-line files.
//
// A description is lines of words; what is after # is a comment. Lines that begin
// with one of these words make a folder, and lines until the next one fill it:
//
//	pci PATH       a PCI function, devices/PATH
//	ib NAME PATH   an RDMA device of the function (or other device) at devices/PATH,
//	               or "virtual" for one without
//	port N         a port of the RDMA device above
//	net NAME PATH  a net device, likewise
//
// and in them
//
//	FILE CONTENT...          a file
//	FILE -> TARGET           a symbolic link
//	FILE !                   a file that cannot be read
//	uverbs N                 the RDMA device's char device (and its umad)
//	gid I GID TYPE NETDEV    an entry of the port's GID table; TYPE is v1, v2, ib or ! for
//	                         attributes that cannot be read; NETDEV is - for none
//	gids N                   N entries in all: those without a line are empty
//	lower NET                the net device is stacked on another one
//
// Owns: the above. It is imported by tests only.
// Imports: the standard library.
// Goroutines: none. Locks: none.
package fabrictest
