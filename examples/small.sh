#!/bin/sh
# Runs the examples that are one file each, in Rust, C and Python, with a cluster of three where needed. Those whose tools are
# missing here are skipped, and the output says so.
#
#   examples/small.sh PROGRAMS      the directory in which cargo has left `chiplog` and `examples/client`
#
# PYTHON is another interpreter than python3, MAKE another make.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
programs=$(cd "$1" && pwd)
python=${PYTHON:-python3} make=${MAKE:-make}
dir=$(mktemp -d)
trap 'exit 130' INT TERM
trap 'kill "${cluster:-}" 2>/dev/null || :; wait; rm -rf "$dir"' EXIT
has() { command -v "$1" >/dev/null 2>&1; }
title() { printf '\n%s\n' "$1"; }

"$programs/chiplog" dev --port 0 --json >"$dir/cluster" &
cluster=$!
tries=0
until [ -s "$dir/cluster" ]; do
  kill -0 $cluster # it ended: its own output says why
  tries=$((tries + 1))
  [ $tries -lt 600 ] || { echo "no cluster within a minute" >&2; exit 1; }
  sleep 0.1
done
servers=$(grep -o '"client":"[^"]*"' "$dir/cluster" | cut -d '"' -f 4)

title "net/examples/client.rs: a client in Rust"
# shellcheck disable=SC2086 # addresses have no blanks
set -- $servers
"$programs/examples/client" "$1"

if has cc && has pkg-config; then
  "$make" --silent -C "$root" install-lib LIB_PROFILE=dev PREFIX="$root/target/install"
  export PKG_CONFIG_PATH="$root/target/install/lib/pkgconfig" LD_LIBRARY_PATH="$root/target/install/lib"
  for name in embedded producer follower_view; do
    # shellcheck disable=SC2046 # flags are words
    cc -O2 -o "$dir/$name" "$root/examples/c/$name.c" $(pkg-config --cflags --libs chiplog)
  done
  title "examples/c/embedded.c: a log in a C program"
  "$dir/embedded" "$dir/log"
  title "examples/c/producer.c: lines into the cluster"
  head -n 1000 "$root/examples/data/opticks.txt" | "$dir/producer" "$@"
  title "examples/c/follower_view.c: a copy of them, and sums over it"
  "$dir/follower_view" "$dir/copy" 1000 "$@"
else
  title "The examples in C are SKIPPED: there is no cc, or no pkg-config, on this machine."
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  title "The examples in Python are SKIPPED: $python is not there, or older than 3.11 (PYTHON=path for another)."
  exit
fi
"$make" --silent -C "$root" wheel-dev PYTHON="$python"
"$python" -m venv --clear "$dir/python"
"$dir/python/bin/pip" install --quiet --disable-pip-version-check --no-index "$(ls -t "$root"/target/wheels-test/chiplog-*.whl | head -n 1)"
export CHIPLOG="$programs/chiplog"
title "python/examples/view.py: a view with a copy of the log in it; the leader is killed"
"$dir/python/bin/python" "$root/python/examples/view.py"
title "python/examples/asyncio_producer.py: producer and reader in one event loop"
"$dir/python/bin/python" "$root/python/examples/asyncio_producer.py"
if "$dir/python/bin/pip" install --quiet --disable-pip-version-check numpy 2>/dev/null; then
  title "python/examples/numpy_batches.py: sums over batches in place"
  "$dir/python/bin/python" "$root/python/examples/numpy_batches.py"
else
  title "python/examples/numpy_batches.py is SKIPPED: numpy is not to be had."
fi
