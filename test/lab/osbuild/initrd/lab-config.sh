#!/bin/sh
# Copies the config drive (a disk labelled config-2) onto the persistent root, once. The contract is in doc.go.
set -eu

root=/sysroot
drive=/run/lab-config-drive

udevadm settle --timeout=30 || true
if [ ! -e /dev/disk/by-label/config-2 ]; then
    echo "lab-config: no disk labelled config-2; nothing is configured"
    exit 0
fi

mkdir -p "$drive"
# FAT has no modes: every file of it is private to root.
mount -o ro -t vfat -o fmask=0177,dmask=0022 /dev/disk/by-label/config-2 "$drive" 2>/dev/null ||
    mount -o ro -t iso9660 /dev/disk/by-label/config-2 "$drive"
if [ -d "$drive/files" ]; then
    cp -r --preserve=mode "$drive/files/." "$root/"
fi
if [ -f "$drive/files.tar" ]; then
    tar -x -p --numeric-owner -f "$drive/files.tar" -C "$root"
fi
umount "$drive"

mkdir -p "$root/var/lib/lab"
sync
touch "$root/var/lib/lab/configured"
sync
