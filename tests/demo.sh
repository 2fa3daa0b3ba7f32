#!/usr/bin/env bash
# The main job, end to end, for somebody who watches: two shards on two rails
# each come up, a real file is stored in stripes, one worker reads it back over
# both rails at once and over each alone, and everything goes down.
#
# usage: tests/demo.sh [RS]     RS is the command, ./rs without it
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
rs=$(realpath "${1:-$root/rs}")
work=$(mktemp -d "${TMPDIR:-/tmp}/railstore-demo.XXXXXX")
export RS_STATE=$work/state
started=$SECONDS

# The recipe as it is; only when something else has its control port, as the same
# deployment under this user's own state folder would, another port.
recipe=$root/recipes/two-rail.cue
port=$(sed -nE 's/^control: port: *([0-9]+).*/\1/p' "$recipe")
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if listening "$port"; then
  free=$((port + 1))
  while listening "$free"; do free=$((free + 1)); done
  sed -E "s/^(control: port: *)[0-9]+/\1$free/" "$recipe" >"$work/two-rail.cue"
  recipe=$work/two-rail.cue
  echo "port $port is taken, the control plane gets port $free"
fi

cleanup() {
  status=$?
  trap - EXIT INT TERM
  "$rs" down --quiet two-rail >/dev/null 2>&1 || true
  rm -rf "$work"
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

step() { printf '\n==> %s\n' "$*"; }
sum() { sha256sum <"$1" | cut -d' ' -f1; }

step "a real file of at least 128 MiB, from the Go toolchain"
goroot=$(go env GOROOT)
parts=()
for part in src pkg bin test; do
  [ -d "$goroot/$part" ] || continue
  parts+=("$part")
  tar -cf "$work/toolchain.tar" -C "$goroot" "${parts[@]}"
  [ "$(stat -c %s "$work/toolchain.tar")" -lt $((128 << 20)) ] || break
done
bytes=$(stat -c %s "$work/toolchain.tar")
if [ "$bytes" -lt $((128 << 20)) ]; then
  echo "the Go toolchain at $goroot has only $bytes bytes" >&2
  exit 1
fi
want=$(sum "$work/toolchain.tar")
echo "$bytes bytes, sha256 $want"

step "rs vet -v recipes/two-rail.cue"
"$rs" vet -v "$recipe"

step "rs up recipes/two-rail.cue"
"$rs" up "$recipe"
"$rs" status

step "rs put demo/toolchain toolchain.tar"
"$rs" put demo/toolchain "$work/toolchain.tar"

step "rs read demo/toolchain --explain"
"$rs" read demo/toolchain --explain | sed '/^WAVE/,$d'

# read_over NAME FLAGS...: reads, compares the sum, keeps a row for the end.
rows=()
read_over() {
  name=$1
  shift
  step "rs read demo/toolchain -o out $*"
  out=$work/out
  rm -f "$out"
  "$rs" read demo/toolchain -o "$out" "$@" | tee "$work/said"
  got=$(sum "$out")
  if [ "$got" != "$want" ]; then
    printf '\nFAILED: over %s came back sha256 %s, stored was %s\n' "$name" "$got" "$want" >&2
    exit 1
  fi
  rows+=("$(printf '%-16s %-32s sha256 identical' "$name" "$(grep -oE '[0-9.]+ Gb/s \([0-9.]+ GiB/s\)' "$work/said" | head -1)")")
}
read_over "rail0 and rail1"
for rail in rail0 rail1; do
  if ! grep -qE "^$rail +soft:" "$work/said"; then
    printf '\nFAILED: no row for %s\n' "$rail" >&2
    exit 1
  fi
done
read_over "rail0 alone" --rails rail0
read_over "rail1 alone" --rails rail1

step "rs down"
"$rs" down

echo
printf '%s\n' "${rows[@]}"
printf '\nPASSED: %d bytes came back identical over both rails and over each alone, in %d s altogether.\n' "$bytes" $((SECONDS - started))
echo "Both rails and all processes share this machine's cores, so two rails are not twice as fast here."
