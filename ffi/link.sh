#!/bin/sh
# Links libchiplog.so out of the static library that cargo built: with a soname and symbol versions, which rustc, whose
# version script is its own, gives to no cdylib.
#
#   ffi/link.sh target/release/libchiplog_ffi.a OUTPUT_DIRECTORY VERSION
set -eu
archive=$1 out=$2 version=$3
here=$(dirname "$0")
abi=${version%%.*}
mkdir -p "$out"
${CC:-cc} -shared -o "$out/libchiplog.so.$version" \
  -Wl,-soname,"libchiplog.so.$abi" -Wl,--version-script="$here/chiplog.map" \
  -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now \
  -lgcc_s -lpthread -ldl -lm
ln -sf "libchiplog.so.$version" "$out/libchiplog.so.$abi"
ln -sf "libchiplog.so.$abi" "$out/libchiplog.so"
