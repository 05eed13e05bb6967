#!/bin/sh
# Copies a program without its debug information, and keeps function names: backtraces have them.
#
#   server/strip.sh BINARY OUTPUT [DEBUG_FILE]
#
# DEBUG_FILE gets the debug information. gdb, perf and addr2line find it beside OUTPUT, in .debug/ there, or below /usr/lib/debug.
# OBJCOPY: the objcopy that is used.
set -eu
binary=$1 output=$2 debug=${3:-}
objcopy=${OBJCOPY:-objcopy}
if ! command -v "$objcopy" >/dev/null; then
  echo "no $objcopy here (it comes with binutils): chiplog is not stripped, and several times as large" >&2
  cp "$binary" "$output"
elif [ -z "$debug" ]; then
  "$objcopy" --strip-debug "$binary" "$output"
else
  "$objcopy" --only-keep-debug --compress-debug-sections "$binary" "$debug"
  chmod 644 "$debug"
  "$objcopy" --strip-debug --add-gnu-debuglink="$debug" "$binary" "$output"
fi
chmod 755 "$output"
