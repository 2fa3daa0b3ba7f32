// Package wire is the codec of the InfiniBand transport as RoCE v2 carries it in
// UDP: the base transport header and the extended headers of the reliable
// connection service (IBTA volume 1, chapter 9), packet sequence numbers and the
// invariant CRC (annex A17).
//
// A datagram is BTH, extended headers, payload, 0 to 3 pad bytes, ICRC. Packet is
// its decoded form: flat, filled by Parse without allocation, its Payload a part
// of the datagram. The header types (BTH, RETH, ...) are byte slices with
// accessors for those who build headers in place.
//
// Owns: header layouts, opcodes, PSN arithmetic, ICRC and the search for an
// unknown IP identification.
// Imports: the standard library only.
// Goroutines: none. Locks: none.
package wire
