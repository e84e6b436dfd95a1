#!/bin/sh
# Makes a Debian package of a binary and the files that make install installs.
#
#   build.sh BINARY ARCH DEB
set -eu
umask 022
binary=$(realpath "$1") arch=$2 deb=$(realpath -m "$3")
cd "$(dirname "$0")/../.."
version=$(cat VERSION)
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -Dm755 "$binary" "$root/usr/bin/edm"
make --no-print-directory -s files DESTDIR="$root" PREFIX=/usr
mv "$root/usr/share/doc/edm/LICENSE" "$root/usr/share/doc/edm/copyright"
install -Dm644 contrib/debian/edm.toml "$root/etc/edm/edm.toml"
mkdir "$root/DEBIAN"
echo /etc/edm/edm.toml > "$root/DEBIAN/conffiles"
install -m755 contrib/debian/postinst contrib/debian/prerm contrib/debian/postrm "$root/DEBIAN"
size=$(du -sk --apparent-size "$root" | cut -f1)
sed "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$size/" contrib/debian/control > "$root/DEBIAN/control"
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz -b "$root" "$deb"
