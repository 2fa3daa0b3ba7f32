# Two rails through which the guest reaches itself, and a namespace for endpoints
# in user space. rxe of this kernel lives in the first network namespace only, so
# both ends of a rail do: send-to-self routing makes their packets take the wire.
#
#   rail 0   ra0 10.10.0.1 fd10::1 (rxe0) <-> rb0 10.10.0.2 fd10::2 (rxe2)
#   rail 1   ra1 10.20.0.1 fd20::1 (rxe1) <-> rb1 10.20.0.2 fd20::2 (rxe3)
#   far      rf0 10.30.0.1 fd30::1 (rxe4) <-> rf1 10.30.0.2 fd30::2 (namespace far)
#
# Starting a process takes long under emulation, so commands go in batches, and
# the MAC addresses are given and not asked for.
set -e
mtu=${MTU:-9000}

put() { echo "$1" >"/proc/sys/net/$2"; }
# A full backlog drops packets, and rxe answers a loss with a pause.
put 30000 core/netdev_max_backlog
put 16777216 core/rmem_max
put 16777216 core/wmem_max
put 0 ipv4/conf/all/rp_filter
put 0 ipv4/conf/default/rp_filter
put 1 ipv4/conf/all/accept_local
put 1 ipv4/conf/default/accept_local
put 0 ipv6/conf/all/accept_dad
put 0 ipv6/conf/default/accept_dad

rails="ra0:rb0:10:100 ra1:rb1:20:110" # dev:dev:net:table

links() {
	local a b n t
	for r in $rails; do
		IFS=: read -r a b n t <<<"$r"
		cat <<-END
			link add $a address 02:00:00:00:$n:01 mtu $mtu type veth peer name $b address 02:00:00:00:$n:02 mtu $mtu
			addr add 10.$n.0.1/24 dev $a noprefixroute
			addr add 10.$n.0.2/24 dev $b noprefixroute
			addr add fd$n::1/64 dev $a noprefixroute nodad
			addr add fd$n::2/64 dev $b noprefixroute nodad
			link set $a up
			link set $b up
		END
	done
	cat <<-END
		link set lo up
		link add rf0 address 02:00:00:00:30:01 mtu $mtu type veth peer name rf1 address 02:00:00:00:30:02 mtu $mtu
		link set rf1 netns far
		addr add 10.30.0.1/24 dev rf0
		addr add fd30::1/64 dev rf0 nodad
		link set rf0 up
		neigh replace 10.30.0.2 lladdr 02:00:00:00:30:02 dev rf0 nud permanent
		neigh replace fd30::2 lladdr 02:00:00:00:30:02 dev rf0 nud permanent
	END
}

far() {
	cat <<-END
		link set lo up
		addr add 10.30.0.2/24 dev rf1
		addr add fd30::2/64 dev rf1 nodad
		link set rf1 up
		neigh replace 10.30.0.1 lladdr 02:00:00:00:30:01 dev rf1 nud permanent
		neigh replace fd30::1 lladdr 02:00:00:00:30:01 dev rf1 nud permanent
	END
}

rules() { # prefix: "10." or "fd", suffix: ".0." or "::"
	local a b n t a0 b0
	for r in $rails; do
		IFS=: read -r a b n t <<<"$r"
		a0=$1$n${2}1 b0=$1$n${2}2
		# What comes in is for this host; what goes out does not know that.
		cat <<-END
			rule add pref 10 iif $a lookup local
			rule add pref 10 iif $b lookup local
			rule add pref 15 oif $a to $b0 lookup $t
			rule add pref 15 oif $b to $a0 lookup $((t + 1))
			rule add pref 20 from $a0 to $b0 lookup $t
			rule add pref 20 from $b0 to $a0 lookup $((t + 1))
			route add $b0 dev $a src $a0 table $t
			route add $a0 dev $b src $b0 table $((t + 1))
			neigh replace $b0 lladdr 02:00:00:00:$n:02 dev $a nud permanent
			neigh replace $a0 lladdr 02:00:00:00:$n:01 dev $b nud permanent
		END
	done
	echo rule add pref 100 lookup local
	echo rule del pref 0 lookup local
}

ip netns add far
links | ip -batch -
far | ip -n far -batch -
rules 10. .0. | ip -4 -batch -
rules fd :: | ip -6 -batch -

printf 'link add rxe%s type rxe netdev %s\n' 0 ra0 1 ra1 2 rb0 3 rb1 4 rf0 | rdma -b -

# GIDs follow addresses a moment later.
complete() {
	local d g
	for d in rxe0 rxe1 rxe2 rxe3 rxe4; do
		read -r g </sys/class/infiniband/$d/ports/1/gids/1 && [[ $g == *:ffff:* ]] || return 1
		read -r g </sys/class/infiniband/$d/ports/1/gids/2 && [[ $g == fd* ]] || return 1
	done
}
for ((i = 0; i < 100; i++)); do
	complete && exit 0
	sleep 0.1
done
echo "topology: the GID tables are not complete"
rdma link
exit 1
