#!/bin/sh
# Links libchiplog.so from the static library that cargo built, with a soname and symbol versions. rustc cannot do
# this for a cdylib because it uses its own version script. The library is stripped. Its debug information goes to
# OUTPUT_DIRECTORY/.debug/libchiplog.so.VERSION.debug, where gdb, perf, addr2line and others find it.
#
#   ffi/link.sh target/release/libchiplog_ffi.a OUTPUT_DIRECTORY VERSION
set -eu
archive=$1 out=$2 version=$3
here=$(dirname "$0")
abi=${version%%.*}
name=libchiplog.so.$version
mkdir -p "$out"
${CC:-cc} -shared -o "$out/$name" \
  -Wl,-soname,"libchiplog.so.$abi" -Wl,--version-script="$here/chiplog.map" -Wl,--build-id \
  -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now \
  -lgcc_s -lpthread -ldl -lm
ln -sf "$name" "$out/libchiplog.so.$abi"
ln -sf "libchiplog.so.$abi" "$out/libchiplog.so"
objcopy=${OBJCOPY:-objcopy}
if ! command -v "$objcopy" >/dev/null; then
  echo "$objcopy not found (package binutils): libchiplog works, but is not stripped and several times as large" >&2
  exit 0
fi
mkdir -p "$out/.debug"
"$objcopy" --only-keep-debug "$out/$name" "$out/.debug/$name.debug"
chmod 644 "$out/.debug/$name.debug"
# The debug link holds the file's name and checksum. The build-id, which both files have, serves tools that collect
# such files by it.
"$objcopy" --strip-unneeded --add-gnu-debuglink="$out/.debug/$name.debug" "$out/$name"
