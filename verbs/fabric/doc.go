// Package fabric knows what a host's RDMA devices look like to a person: their
// ports, link layers, net devices and GID tables, which device a selector means,
// which GID of a port to use, and what stands in the way of using it.
//
// Read takes a host's devices from sysfs, of this host or of a tree that was
// copied from another one, and opens none of them. State, rate and the rest are
// spelt as ibv_devinfo and "rdma link" spell them. What sysfs does not tell (the
// MTU of an InfiniBand port) stays 0 and whoever opens the device may fill it in.
//
// # Net devices of a port
//
// A GID belongs to a net device: the port's own one, one stacked on it (a VLAN, a
// macvlan, a bond, a bridge that it is in), or one whose addresses lead nowhere on
// the wire (a container bridge, a tunnel). Choose tells these apart by what the
// kernel says of the net device, and by its name only where the kernel is silent.
//
// On this host the devices' char devices and net devices come from rdmamap, which
// reads /sys and asks netlink; in another tree from the same files by our own
// reading.
//
// # Robustness
//
// Everything read is taken as untrusted: files are cut at 4 KiB, control
// characters are replaced, and what cannot be understood becomes a note of the
// device, never a failure.
//
// Owns: devices and ports as sysfs tells them, device selectors, GID selection
// with a reason for every entry that was not taken, warnings with a hint.
// Imports: verbs, cue/deploy (selectors are written in recipes), rdmamap and the
// standard library.
// Goroutines: none. Locks: none.
package fabric
