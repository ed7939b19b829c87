#!/bin/sh
# Makes what is given to users, in target/dist: the files of an installation, an archive and a Debian package of them, checksums.
#
#   cargo xtask dist            all of it
#   cargo xtask dist stage DIR  the files alone, below DIR; the Dockerfile does the same
set -eu
cd "$(dirname "$0")/.."
out=target/dist
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# The files of an installation, below $1. The command is not linked statically at a fixed address, although it would start in a quarter
# less time: it speaks TLS and often runs as root, so its addresses are better not known in advance, and without the system's C library
# names of servers would not be looked up as the system is configured to.
stage() {
    cargo build --locked --quiet --profile dist --package distlock-cli --all-features
    install -D "${CARGO_TARGET_DIR:-target}/dist/distlock" "$1/usr/bin/distlock"
    mkdir -p "$1/usr/share/man/man1"
    "$1/usr/bin/distlock" man "$1/usr/share/man/man1"
    gzip --best --no-name --force "$1"/usr/share/man/man1/*
    for pair in bash:bash-completion/completions/distlock zsh:zsh/vendor-completions/_distlock \
        fish:fish/vendor_completions.d/distlock.fish; do
        file=$1/usr/share/${pair#*:}
        mkdir -p "${file%/*}"
        "$1/usr/bin/distlock" completions "${pair%%:*}" >"$file"
    done
    for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE packaging/prometheus/alerts.yml \
        packaging/grafana/distlock.json; do
        install -D --mode=644 "$file" "$1/usr/share/doc/distlock/${file##*/}"
    done
}

# A Debian package of the files below $1. It needs no tool beside dpkg.
package() {
    mkdir -p "$1/DEBIAN"
    {
        echo "Package: distlock"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Maintainer: The authors of distlock <distlock@localhost>"
        echo "Section: admin"
        echo "Priority: optional"
        # The oldest C library that has what the command calls.
        needed=$(strings -a "$1/usr/bin/distlock" | sed -n 's/^.*GLIBC_\([0-9.]*\).*$/\1/p' | sort -V | tail -n 1)
        echo "Depends: libc6 (>= $needed), libgcc-s1"
        echo "Recommends: ca-certificates"
        echo "Installed-Size: $(du -sk "$1/usr" | cut -f 1)"
        echo "Description: runs programs under a distributed lock"
        echo " Run a program under a lock, on one machine or on many; hold a lock, look at it, break it, elect a leader."
    } >"$1/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$1" "$out" >&2
    rm -r "$1/DEBIAN"
}

if [ "${1-}" = stage ]; then
    stage "$2"
    exit
fi
rm -rf "$out"/stage "$out"/distlock*.deb "$out"/distlock*.tar.gz "$out"/SHA256SUMS
mkdir -p "$out"
stage "$out/stage"
architecture=$(dpkg --print-architecture 2>/dev/null || uname -m)
if command -v dpkg-deb >/dev/null; then
    package "$out/stage"
else
    echo "no Debian package: dpkg-deb is not installed" >&2
fi
tar -C "$out/stage" --sort=name --owner=0 --group=0 --mtime="@${SOURCE_DATE_EPOCH:-0}" -czf \
    "$out/distlock-$version-$architecture.tar.gz" usr
(cd "$out" && for file in distlock*.deb distlock*.tar.gz; do
    [ ! -e "$file" ] || sha256sum "$file"
done >SHA256SUMS)
ls -l "$out"/distlock*.* "$out/stage/usr/bin/distlock" "$out/SHA256SUMS"
