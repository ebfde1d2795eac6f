#!/bin/sh
# mmdebstrap customize hook: keeps the kernel modules of modules.txt and what they depend on, unpacked, for a guest
# under emulation loads plain files much faster than xz ones.
# Usage: hook.sh ROOT MODULES
set -eu

root=$1
wanted=$(sed -e 's/#.*//' "$2")
kernel=$(ls "$root/usr/lib/modules")
keep=$(mktemp)
trap 'rm -f "$keep"' EXIT

# shellcheck disable=SC2086 # a list of words
chroot "$root" modprobe --all --show-depends --set-version "$kernel" $wanted |
    sed -n 's/^insmod \([^ ]*\).*/\1/p' | sed 's#^/lib/#/usr/lib/#' | sort -u >"$keep"
(cd "$root" && find "usr/lib/modules/$kernel/kernel" -type f) | sed 's#^#/#' | sort | comm -23 - "$keep" |
    while read -r file; do rm "$root$file"; done
while read -r file; do
    case $file in *.xz) chroot "$root" xz -d "$file" ;; esac
done <"$keep"
find "$root/usr/lib/modules/$kernel/kernel" -depth -type d -empty -delete
chroot "$root" depmod "$kernel"
