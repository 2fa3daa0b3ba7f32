# Takes the shards' end of rail 0 up again and gives it back what it lost when it
# was taken down: IPv6 addresses, routes and neighbours; see topology.sh.
set -e
ip link set rb0 up
ip -6 addr replace fd10::2/64 dev rb0 noprefixroute nodad
ip neigh replace 10.10.0.1 lladdr 02:00:00:00:10:01 dev rb0 nud permanent
ip neigh replace fd10::1 lladdr 02:00:00:00:10:01 dev rb0 nud permanent
ip route replace 10.10.0.1 dev rb0 src 10.10.0.2 table 101
ip -6 route replace fd10::1 dev rb0 src fd10::2 table 101
ip route replace 10.10.0.2 dev ra0 src 10.10.0.1 table 100
ip -6 route replace fd10::2 dev ra0 src fd10::1 table 100
