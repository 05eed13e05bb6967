#!/bin/sh
# Puts the files of the Debian package below a directory, as cargo-deb takes them (the list is in server/Cargo.toml).
#
#   server/package.sh BINARY OUTPUT_DIRECTORY
#
# The debug information goes to OUTPUT_DIRECTORY/chiplog.debug.
set -eu
umask 022
binary=$1 out=$2
here=$(dirname "$0")
root=$out/root
rm -rf "$root"
mkdir -p "$root"
DEBUG_FILE=$out/chiplog.debug "$here/install.sh" "$binary" /usr "$root"
# Debian's places.
mv "$root/usr/share/chiplog"/* "$root/usr/share/doc/chiplog/"
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_chiplog" "$root/usr/share/zsh/vendor-completions/_chiplog"
rmdir "$root/usr/share/chiplog" "$root/usr/share/zsh/site-functions"
# The package creates the user that the server runs as, so the data directory is /var/lib/chiplog itself.
sed -i '/^# DynamicUser makes/,/^#SupplementaryGroups=/c\
# Keys and tokens: chown root:chiplog, chmod 640.\
User=chiplog\
Group=chiplog' "$root/usr/lib/systemd/system/chiplog.service"
