package main

import (
	"context"

	"github.com/stayput-dev/stayput/test/demo"
	"github.com/stayput-dev/stayput/test/e2e"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

// setUpPart is a part of bringing the lab up.
type setUpPart struct {
	demo.Part

	run func(ctx context.Context) error
}

// setUp brings the lab up, part by part.
func (d *demonstration) setUp(ctx context.Context) error {
	for _, part := range d.parts() {
		err := d.Run(ctx, part.Part, func(ctx context.Context, _ func(string)) error { return part.run(ctx) })
		if err != nil {
			return err
		}
	}

	return nil
}

func (d *demonstration) parts() []setUpPart {
	return []setUpPart{
		{demo.Part{
			Name: "Programs",
			Telling: "Debian's packages, and Kubernetes " + tools.KubernetesVersion + ", etcd and containerd " + tools.ContainerdVersion +
				", built from their pinned Go modules.\n" +
				"About a quarter of an hour the first time; after that they come from the cache.",
		}, d.programs},
		{demo.Part{
			Name: "Data centre",
			Telling: "A control plane, an OCI registry with TLS and a password, libvirt, and a Redfish emulator that is the BMC of\n" +
				"each machine. All of it listens on this machine's loopback only.",
		}, d.dataCentre},
		{demo.Part{
			Name: "OS images",
			Telling: "Four versions of a small Debian with systemd, containerd and kubelet, as OCI images: " + demo.First + ", a good\n" +
				"successor, one whose kernel panics, and one that hangs. Debian's packages are downloaded the first time.",
		}, d.images},
		{demo.Part{
			Name: "Machines",
			Telling: "Two machines with UEFI firmware, two slots each and a hardware watchdog start OS " + demo.First + " and join the\n" +
				"cluster. Metal3's objects describe them: a BareMetalHost each, with the address and the password of its BMC.",
		}, d.machines},
		{demo.Part{
			Name: "Controller",
			Telling: "stayput-controller runs beside the cluster, with the rights of its service account and no more. The agents\n" +
				"run on the machines already.",
		}, d.controller},
		{demo.Part{
			Name: "Workload",
			Telling: "A Deployment and a DaemonSet with a pod on each machine, so that there is something to drain, and to start\n" +
				"anew after an update.",
		}, d.workload},
	}
}

func (d *demonstration) programs(ctx context.Context) error {
	if err := tools.EnsurePackages(ctx, tools.PackageList(packages), d.Screen.Linef); err != nil {
		return err
	}

	root, err := tools.RepositoryRoot()
	if err != nil {
		return err
	}

	for _, set := range []tools.Set{tools.Kubernetes(), tools.Containerd()} {
		if _, err := tools.Ensure(ctx, root, set, d.Screen.Linef); err != nil {
			return err
		}
	}

	return nil
}

func (d *demonstration) dataCentre(ctx context.Context) error {
	var err error

	d.running, err = lab.Start(ctx, lab.Options{ID: d.id, Dir: d.dir, Agent: d.options.agent, Report: d.Screen.Linef})

	return err
}

// images builds all versions before a machine runs: beside a compression an emulated one would hardly get on.
func (d *demonstration) images(ctx context.Context) error {
	for _, variant := range demo.Variants(demo.Story(demo.PaceOf(d.running.Accelerated()))) {
		if _, err := d.running.BuildImage(ctx, variant); err != nil {
			return err
		}

		d.Screen.Linef("OS %s: there", variant)
	}

	return nil
}

func (d *demonstration) machines(ctx context.Context) error {
	return addMachines(ctx, d.running, len(demo.Machines()), d.Screen.Linef)
}

func (d *demonstration) controller(ctx context.Context) error {
	_, err := d.running.StartController(ctx, d.options.controller)

	return err
}

func (d *demonstration) workload(ctx context.Context) error {
	return e2e.StartWorkload(ctx, d.running)
}
