# Takes one end of a rail up again and gives both what they lost when it was taken down:
# IPv6 addresses, routes and neighbours; see topology.sh.
#
#   mend.sh ra0|rb0|ra1|rb1
set -e
case $1 in
*0) n=10 t=100 ;;
*1) n=20 t=110 ;;
esac
a=ra${1: -1} b=rb${1: -1}
ip link set "$1" up
ip -6 -batch - <<END
addr replace fd$n::1/64 dev $a noprefixroute nodad
addr replace fd$n::2/64 dev $b noprefixroute nodad
neigh replace fd$n::2 lladdr 02:00:00:00:$n:02 dev $a nud permanent
neigh replace fd$n::1 lladdr 02:00:00:00:$n:01 dev $b nud permanent
route replace fd$n::2 dev $a src fd$n::1 table $t
route replace fd$n::1 dev $b src fd$n::2 table $((t + 1))
END
ip -4 -batch - <<END
neigh replace 10.$n.0.2 lladdr 02:00:00:00:$n:02 dev $a nud permanent
neigh replace 10.$n.0.1 lladdr 02:00:00:00:$n:01 dev $b nud permanent
route replace 10.$n.0.2 dev $a src 10.$n.0.1 table $t
route replace 10.$n.0.1 dev $b src 10.$n.0.2 table $((t + 1))
END
