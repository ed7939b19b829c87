#!/bin/sh
# Installs the Debian package of `cargo xtask dist` in a clean root, uses it there, and removes it. Needs root and debootstrap.
#
#   packaging/try-deb.sh ROOT [SUITE]
#
# ROOT is a folder, which is filled with a minimal Debian if it is empty.
set -eu
root=$1 suite=${2:-stable}
[ -e "$root/etc/debian_version" ] || debootstrap --variant=minbase "$suite" "$root"
files() { (cd "$root" && find usr/bin usr/share -path '*distlock*' | sort); }
in_root() { chroot "$root" env -i PATH=/usr/bin:/bin HOME=/root "$@"; }
[ -z "$(files)" ]
dpkg --root="$root" --install target/dist/distlock_*.deb
files
in_root distlock --version
[ "$(in_root distlock exec first -- sh -c 'echo "$DISTLOCK_NAME"')" = first ]
in_root distlock status --json first
in_root gzip -dc /usr/share/man/man1/distlock-exec.1.gz | grep -q 'distlock\\-exec'
in_root bash -n /usr/share/bash-completion/completions/distlock
dpkg --root="$root" --remove distlock
[ -z "$(files)" ]
echo "installed, used and removed in $root"
