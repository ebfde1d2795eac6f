#!/bin/bash
# dracut module of the lab's initrd: the first-boot configuration from the config drive, and a reboot where
# a plain systemd initrd would open an emergency shell and wait for ever.

check() {
    return 255
}

depends() {
    echo systemd-initrd systemd-veritysetup
}

install() {
    local unit
    inst_multiple sh mount umount mkdir cp touch sync sleep tar udevadm systemctl
    inst_script "$moddir/lab-config.sh" /usr/libexec/lab/config
    for unit in lab-config.service emergency.service; do
        inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    done
    mkdir -p "$initdir$systemdsystemunitdir/initrd.target.wants"
    ln -sf ../lab-config.service "$initdir$systemdsystemunitdir/initrd.target.wants/lab-config.service"

    # Nobody asks for it by its name: dm-verity takes what is there.
    mkdir -p "$initdir/etc/modules-load.d"
    echo sha256_ssse3 >"$initdir/etc/modules-load.d/10-lab.conf"

    mkdir -p "$initdir$systemdsystemunitdir/systemd-udev-trigger.service.d"
    inst_simple "$moddir/udev-trigger.conf" "$systemdsystemunitdir/systemd-udev-trigger.service.d/10-lab.conf"

    # Each rule costs time for each device; those of disks are enough to find the root.
    for unit in "$initdir"/usr/lib/udev/rules.d/*.rules; do
        case ${unit##*/} in
            50-udev-default.rules | 55-dm.rules | 60-block.rules | 60-cdrom_id.rules | \
                60-persistent-storage.rules | 60-persistent-storage-dm.rules | 80-drivers.rules | \
                95-dm-notify.rules | 99-systemd.rules) ;;
            *) rm "$unit" ;;
        esac
    done
}
