#!/bin/sh
# Copies the config drive (a disk labelled config-2) onto the persistent root, once. The contract is in doc.go.
set -eu

root=/sysroot
drive=/run/lab-config-drive

# A FAT label is in capitals when the drive was made by dosfstools or mtools.
find_drive() {
    for label in config-2 CONFIG-2; do
        if [ -e "/dev/disk/by-label/$label" ]; then
            echo "/dev/disk/by-label/$label"
            return
        fi
    done
}

udevadm settle --timeout=30 || true
device=$(find_drive)
if [ -z "$device" ]; then
    echo "lab-config: no disk labelled config-2; nothing is configured"
    exit 0
fi

mkdir -p "$drive"
# FAT has no modes: every file of it is private to root.
mount -o ro -t vfat -o fmask=0177,dmask=0022 "$device" "$drive" 2>/dev/null ||
    mount -o ro -t iso9660 "$device" "$drive"
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
