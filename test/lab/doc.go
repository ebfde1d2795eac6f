// Package lab is a small data centre on one Debian machine, for tests, demonstrations and development: a Kubernetes
// control plane, an OCI registry, virtual machines that stand for physical ones with a BMC each, and the objects that
// Metal3 would have made for them.
//
//	lab, err := lab.Start(ctx, lab.Options{ID: "x", Dir: dir, Report: log.Printf})   // control plane and registry
//	host, err := lab.AddMachine(ctx, lab.MachineSpec{Node: "node-1", Disk: disk})     // BareMetalHost and machine, off
//	err = host.Machine.PowerOn(ctx)
//	err = lab.WaitNodeReady(ctx, "node-1")
//	err = lab.Down(ctx, dir, "x", report)
//
// Everything lives in one directory, listens on the loopback interface only, and outlives the command that started it;
// Open finds it again. Down takes all of it away, also after a crash: it stops the processes whose pid files lie in
// the directory, and removes the libvirt domains whose names begin with the lab's own prefix.
//
// # What is where
//
//	DIR/cluster       control plane (package controlplane); admin.kubeconfig is in it
//	DIR/management    a second one, when Options.Management is set: the hosts and pools live there
//	DIR/registry      registry (package registry)
//	DIR/bmc           Redfish emulator (package redfish)
//	DIR/machines/N    machine N (package machine): console.log is what it prints
//
// # What is real and what is not
//
// Kernel, systemd, containerd, kubelet, API server with its authorizers, registry, UEFI firmware, boot loader and the
// watchdog's effect are real. Emulated are the hardware, and the BMC, which acts on libvirt. Metal3's controllers do
// not run: the lab writes the objects as they leave them for a provisioned host.
//
// Every guest sees the host's loopback at 10.0.2.2 and the registry also at its own 127.0.0.1, under the same port, so
// that one image reference is good everywhere.
package lab
