#!/usr/bin/env bash
# GETs of rs over soft rails beside Redis MGET of the same rows, on this machine, one
# after the other. Prints rows a second of both, the best of several depths each, and
# their ratio. Redis is measured with its own redis-benchmark, without persistence. It does
# not look at what it reads, so rs does not either while it is measured: it compares every
# row in a run before.
#
#   tests/bench/redis.sh [RS] [FOLDER of results]
#
# RECORDS, DIM, BATCH, SECONDS_EACH and DEPTHS may be set. Exit code 77: something that
# it needs is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rs=$(realpath "${1:-$here/../../rs}")
out=${2:-results/redis-$(date -u +%Y%m%d-%H%M%S)}
RECORDS=${RECORDS:-100000} DIM=${DIM:-128} BATCH=${BATCH:-500} SECONDS_EACH=${SECONDS_EACH:-3} DEPTHS=${DEPTHS:-"1 2 4 8"}

for tool in redis-server redis-cli redis-benchmark python3; do
	command -v "$tool" >/dev/null || { echo "skipped: there is no $tool" >&2; exit 77; }
done
[ -x "$rs" ] || { echo "skipped: there is no $rs (make build)" >&2; exit 77; }

work=$(mktemp -d)
export RS_STATE=$work/state
redis=
finish() {
	"$rs" down --quiet bench-table >/dev/null 2>&1 || true
	if [ -n "$redis" ]; then kill "$redis" 2>/dev/null || true; wait "$redis" 2>/dev/null || true; fi
	rm -rf "$work"
}
trap finish EXIT
mkdir -p "$out"

# ticks PID: the time that a process has used, in hundredths of a second.
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }

# rs, and the rows for Redis
"$rs" up --quiet "$here/table.cue" >/dev/null
"$rs" bench table --quiet --records "$RECORDS" --dim "$DIM" --batch "$BATCH" --depth 2 --read 90 --duration 1s --warmup 0s --check
"$rs" bench table --quiet --records "$RECORDS" --dim "$DIM" --batch "$BATCH" --depth "${DEPTHS// /,}" --no-verify \
	--duration "${SECONDS_EACH}s" --warmup 1s --keep --out "$out/rs" | tee "$out/rs.txt"
"$rs" table save --quiet rs-bench "$work/rows.npy" --range "0:$RECORDS" --must-exist >/dev/null
"$rs" down --quiet bench-table >/dev/null

# Redis with the same rows
sock=$work/redis.sock
redis-server --port 0 --unixsocket "$sock" --save '' --appendonly no --dir "$work" >"$work/redis.log" 2>&1 &
redis=$!
for _ in $(seq 100); do redis-cli -s "$sock" ping >/dev/null 2>&1 && break; sleep 0.1; done
python3 "$here/rows.py" "$work/rows.npy" | redis-cli -s "$sock" --pipe >"$work/pipe.log"
[ "$(redis-cli -s "$sock" dbsize)" = "$RECORDS" ] || { echo "redis has not all rows" >&2; cat "$work/pipe.log" >&2; exit 1; }
keys=()
for _ in $(seq "$BATCH"); do keys+=(key:__rand_int__); done
# One way is TCP on the loopback, as a client on another machine would use it; the other is
# the socket, which is faster.
redis-cli -s "$sock" config set port 26390 >/dev/null
for depth in $DEPTHS; do
	for way in tcp socket; do
		at=(-h 127.0.0.1 -p 26390)
		[ $way = tcp ] || at=(-s "$sock")
		# A short run tells how many requests the time is worth.
		rps=$(redis-benchmark "${at[@]}" -c "$depth" -n 400 -r "$RECORDS" --csv MGET "${keys[@]}" 2>/dev/null | tail -1 | awk -F'","' '{print $2}')
		n=$(awk -v r="$rps" -v s="$SECONDS_EACH" 'BEGIN {n = int(r * s); print (n < 400) ? 400 : n}')
		before=$(ticks "$redis")
		TIMEFORMAT='%U %S'
		{ time redis-benchmark "${at[@]}" -c "$depth" -n "$n" -r "$RECORDS" --csv MGET "${keys[@]}" >"$work/csv" 2>/dev/null; } 2>"$work/time"
		rps=$(tail -1 "$work/csv" | awk -F'","' '{print $2}')
		awk -v d="$depth" -v w=$way -v r="$rps" -v b="$BATCH" -v n="$n" -v ticks="$(($(ticks "$redis") - before))" -v client="$(tr ' ' + <"$work/time")" '
			BEGIN {split(client, c, "+"); cpu = ticks / 100 + c[1] + c[2]
			printf "redis MGET, %s, depth %d: %.0f rows/s, %.0f requests/s, CPU: client %.2f s, server %.2f s, %.0f rows a CPU second\n", w, d, r * b, r, c[1] + c[2], ticks / 100, n * b / cpu}'
	done
done | tee "$out/redis.txt"

best_rs=$(awk '/ rows\/s, /{if ($1 > m) m = $1} END {printf "%.0f", m}' "$out/rs.txt")
best() { awk -v w="$1" '$3 == w "," {if ($6 > m) m = $6} END {printf "%.0f", m}' "$out/redis.txt"; }
awk -v a="$best_rs" -v tcp="$(best tcp)" -v sock="$(best socket)" 'BEGIN {
	printf "rs GET over soft    %9.0f rows/s\nredis MGET, TCP     %9.0f rows/s  ratio %.2f\nredis MGET, socket  %9.0f rows/s  ratio %.2f\n", a, tcp, a / tcp, sock, a / sock
}' | tee "$out/ratio.txt"
echo "results are in $out" >&2
