#!/usr/bin/env bash
# A warm read of 64 MiB over soft rails beside a plain WRITE of 64 MiB from one process to
# another, as perftest measures it, in turns. The WRITE of rs bench read has both its ends
# in one process and so waits for no other; a read has its ends in three.
#
#   tests/bench/write.sh [RS [ROUNDS]]
#
# Prints every round and the medians of ROUNDS (7); the aim is 0.7. What one run of a
# machine like this shows is worth as much as its spread.
set -euo pipefail
rs=$(realpath "${1:-./rs}") rounds=${2:-7} port=${PORT:-18779}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap '"$rs" --state "$work" down --quiet >/dev/null || true; rm -rf "$work"' EXIT
"$rs" --state "$work" up --quiet recipes/two-rail.cue >/dev/null

read_rate() {
	"$rs" --state "$work" bench read --quiet --size 64MiB --readers 1 --samples 7 --warmup 2 --no-write --out "$work/results" --format json |
		sed -n 's/.*{"kind":"all rails","samples":7,"degraded":0,"bytes_per_second":\([0-9.e+]*\).*/\1/p'
}

write_rate() {
	"$rs" bench verbs --quiet --listen --port "$port" --device soft:127.0.3.1 >/dev/null &
	local far=$! rate=
	for _ in $(seq 50); do # until it listens
		rate=$("$rs" bench verbs --device soft:127.0.3.2 --size 64MiB --iters 7 --depth 4 --port "$port" --format json 127.0.0.1 2>"$work/why" |
			sed -n 's/.*"bytes_per_second":\([0-9.e+]*\),"messages.*/\1/p') && [ -n "$rate" ] && break
	done
	wait "$far"
	[ -n "$rate" ] || { cat "$work/why" >&2; return 1; }
	echo "$rate"
}

for round in $(seq "$rounds"); do
	# Who is first takes turns, too.
	if ((round % 2)); then r=$(read_rate) w=$(write_rate); else w=$(write_rate) r=$(read_rate); fi
	echo "$r $w"
done | awk '{printf "read %.2f GB/s, WRITE %.2f GB/s, ratio %.3f\n", $1/1e9, $2/1e9, $1/$2; v[NR] = $1/$2}
	END {sort(v, NR); m = NR % 2 ? v[(NR+1)/2] : (v[NR/2] + v[NR/2+1])/2
		printf "read / WRITE = %.3f (median of %d rounds, %.3f to %.3f); aim 0.7: %s\n", m, NR, v[1], v[NR], (m >= 0.7 ? "met" : "not met")}
	function sort(a, n,   i, j, t) {for (i = 2; i <= n; i++) {t = a[i]; for (j = i - 1; j > 0 && a[j] > t; j--) a[j+1] = a[j]; a[j+1] = t}}'
