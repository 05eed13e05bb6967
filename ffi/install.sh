#!/bin/sh
# Installs header, libraries, pkg-config file, CMake package and licences below a prefix.
#
#   ffi/install.sh STATIC_LIBRARY PREFIX VERSION [DESTDIR]
#
# OBJCOPY: the objcopy that strips both libraries. CC: the compiler that links the shared one.
set -eu
archive=$1 prefix=$2 version=$3 root=${4:-}$2
here=$(dirname "$0")
abi=${version%%.*}
case $prefix in /*) ;; *) echo "PREFIX must begin with /, but is: $prefix" >&2; exit 2 ;; esac
fill() { sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" -e "s|@ABI@|$abi|g" "$1"; }
mkdir -p "$root/include" "$root/lib/pkgconfig" "$root/lib/cmake/chiplog" "$root/share/doc/chiplog"
cp "$here/include/chiplog.h" "$root/include/chiplog.h"
cp "$here/../LICENSE" "$here/../THIRD-PARTY.txt" "$root/share/doc/chiplog/"
"$here/link.sh" "$archive" "$root/lib" "$version"
# The static library keeps function names for programs that link it. Line numbers are in the one that cargo built.
"${OBJCOPY:-objcopy}" --strip-debug "$archive" "$root/lib/libchiplog.a" 2>/dev/null || cp "$archive" "$root/lib/libchiplog.a"
fill "$here/chiplog.pc.in" >"$root/lib/pkgconfig/chiplog.pc"
fill "$here/chiplog-config.cmake.in" >"$root/lib/cmake/chiplog/chiplog-config.cmake"
fill "$here/chiplog-config-version.cmake.in" >"$root/lib/cmake/chiplog/chiplog-config-version.cmake"
