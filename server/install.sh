#!/bin/sh
# Installs the server below a prefix: the program, manual pages, completions, the systemd unit, alert rules, a dashboard, licences.
# An existing configuration is not changed.
#
#   server/install.sh BINARY PREFIX [DESTDIR]
#
# OBJCOPY: the objcopy command that strips the program. DEBUG_FILE: a file for its debug information.
set -eu
binary=$1 prefix=$2 dest=${3:-} root=${3:-}$2
here=$(dirname "$0")
case $prefix in /*) ;; *) echo "PREFIX must begin with /, but is: $prefix" >&2; exit 2 ;; esac
mkdir -p "$root/bin" "$root/share/man/man1" "$root/share/bash-completion/completions" "$root/share/zsh/site-functions" \
  "$root/share/fish/vendor_completions.d" "$root/lib/systemd/system" "$root/share/chiplog" "$root/share/doc/chiplog" "$dest/etc/chiplog"
# Write under another name, then rename: a running server keeps the program that it was started with.
"$here/strip.sh" "$binary" "$root/bin/chiplog.new" "${DEBUG_FILE:-}"
mv "$root/bin/chiplog.new" "$root/bin/chiplog"
"$binary" man --out "$root/share/man/man1" >/dev/null
"$binary" completions bash >"$root/share/bash-completion/completions/chiplog"
"$binary" completions zsh >"$root/share/zsh/site-functions/_chiplog"
"$binary" completions fish >"$root/share/fish/vendor_completions.d/chiplog.fish"
sed -e "s|/usr/bin/chiplog|$prefix/bin/chiplog|g" "$here/dist/chiplog.service" >"$root/lib/systemd/system/chiplog.service"
cp "$here/../docs/monitoring/alerts.yml" "$here/../docs/monitoring/dashboard.json" "$root/share/chiplog/"
cp "$here/../LICENSE" "$here/../THIRD-PARTY.txt" "$root/share/doc/chiplog/"
[ -e "$dest/etc/chiplog/chiplog.toml" ] || cp "$here/dist/chiplog.toml" "$dest/etc/chiplog/chiplog.toml"
