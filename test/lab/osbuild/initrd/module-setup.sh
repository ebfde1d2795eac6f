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
    inst_multiple sh mount umount mkdir cp rm mv ls cat touch sleep tar udevadm systemctl sulogin
    inst_script "$moddir/lab-config.sh" /usr/libexec/lab/config
    for unit in lab-config.service emergency.service; do
        inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    done
    mkdir -p "$initdir$systemdsystemunitdir/initrd.target.wants"
    ln -sf ../lab-config.service "$initdir$systemdsystemunitdir/initrd.target.wants/lab-config.service"
}
