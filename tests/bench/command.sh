#!/usr/bin/env bash
# How long the command rs read takes for 1 MiB on soft rails, from the start of its process
# to the end: connecting to every shard over every rail, reading, verifying, leaving.
#
#   tests/bench/command.sh [RS [RUNS]]
#
# Prints the median of RUNS (21) and their spread; the aim is 150 ms. The figure is of this
# machine, and the load average beside it tells what else it did.
set -euo pipefail
rs=$(realpath "${1:-./rs}") runs=${2:-21}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap '"$rs" --state "$work" down --quiet >/dev/null || true; rm -rf "$work"' EXIT
"$rs" --state "$work" up --quiet recipes/two-rail.cue >/dev/null
"$rs" --state "$work" bench read --quiet --size 1MiB --readers 1 --samples 1 --warmup 0 --no-write --cli "$runs" --out "$work/results" --format json |
	sed -n 's/.*"load_before":\([0-9.]*\).*"command":{"bytes":[0-9]*,"seconds":\([0-9.e-]*\),"read_seconds":\([0-9.e-]*\),"least_seconds":\([0-9.e-]*\),"most_seconds":\([0-9.e-]*\).*/\2 \3 \4 \5 \1/p' |
	awk -v runs="$runs" '{printf "rs read of 1 MiB: median %.1f ms of %d runs (%.1f to %.1f), the read itself %.1f ms; load average %s; aim 150 ms: %s\n",
		$1*1e3, runs, $3*1e3, $4*1e3, $2*1e3, $5, ($1 < 0.15 ? "met" : "not met")}'
