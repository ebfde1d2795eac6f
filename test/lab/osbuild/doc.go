// Package osbuild builds the operating systems of the lab's machines: real ones, from Debian packages, so small and
// plain that they boot quickly under emulation. Each version comes as the five parts of a Stayput image (usr,
// usr-verity, uki, loader, state) that `stayput image build` packs.
//
// It refuses to be a distribution: no package manager, no console login, no services beside those in base/wants.txt.
//
// # The system
//
// /usr is erofs under dm-verity, in the slot. Everything else is the persistent root: the file system with the GPT
// name "root", which grows to its partition at the first boot. /etc, /opt and /var are on it, so what `stayput node
// install` puts there survives an update; Inputs.StateDir bakes such files into the state. The ESP is mounted at
// /boot on demand. machine-id and the SSH host key are made at the first boot and stay.
//
// # The config drive
//
// A machine learns who it is as Metal3 would tell it: from a second disk (virtio-blk, as the first) whose file system,
// vfat or ISO 9660, has the label "config-2". At the first boot, while still in the initrd and so before any unit of the
// system is read, the tree files/** of that drive is copied onto /. On vfat files get mode 0600 and folders 0755; on
// ISO 9660 (Rock Ridge) they keep their modes. A files.tar at the top of the drive is unpacked onto / after that, with
// its modes, for programs. All belong to root. /var/lib/lab/configured is the stamp: while it exists the drive is not
// looked at.
//
// What the system reads from there:
//
//	etc/hostname                          the host name, which is the Node's name
//	etc/hosts                             must hold lab.registry (10.0.2.2 with QEMU's user network)
//	etc/kubernetes/kubeconfig             the kubelet does not start without it
//	etc/kubernetes/kubelet.conf.d/*.conf  KubeletConfiguration drop-ins over /usr/share/lab/kubelet.yaml: providerID,
//	                                      authentication.x509.clientCAFile, …
//	etc/kubernetes/kubelet.env            optional: KUBELET_ARGS="--node-ip=… --v=2"
//	etc/containerd/certs.d/*/hosts.toml   registries; the sandbox image is lab.registry:5000/lab/pause:1
//	root/.ssh/authorized_keys             keys for root
//	etc/stayput/**                        the agent's configuration
//
// # Faults
//
// A Variant with a fault is the same system with one thing broken; see Fault.
package osbuild
