package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/controlplane"
	"github.com/stayput-dev/stayput/test/lab/registry"
)

// Snapshot is what an update must leave as it was, and a little more.
type Snapshot struct {
	// UID is the Node object's, MachineID the system's: the same machine, never provisioned anew.
	UID, MachineID string
	// Cordoned is whether the node takes no pods.
	Cordoned bool
	// Marks are the labels, annotations and the condition of the update protocol, and ours, with their values.
	Marks []string
	// OS is the system's name with its version.
	OS string
	// HostGeneration counts the changes of the BareMetalHost's spec, which nobody may make.
	HostGeneration int64
	// Pods are the UIDs of the workload's pods on it.
	Pods []string
	// DataUntouched is whether the disk that nobody may write still has its first bytes.
	DataUntouched bool
}

func (r *Run) snapshots(ctx context.Context) (map[string]Snapshot, error) {
	pods, err := r.pods(ctx)
	if err != nil {
		return nil, err
	}

	snapshots := map[string]Snapshot{}

	for _, name := range r.Scenario.Machines {
		var node corev1.Node
		if err := r.Lab.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return nil, fmt.Errorf("reading node %s: %w", name, err)
		}

		machine, err := r.Lab.Machine(name)
		if err != nil {
			return nil, err
		}

		untouched, err := machine.DataUntouched()
		if err != nil {
			return nil, err
		}

		var host metal3.BareMetalHost

		key := client.ObjectKey{Namespace: lab.Namespace, Name: lab.HostName(name)}
		if err := r.Lab.ManagementClient.Get(ctx, key, &host); err != nil {
			return nil, fmt.Errorf("reading the BareMetalHost of %s: %w", name, err)
		}

		snapshots[name] = Snapshot{
			HostGeneration: host.Generation,
			UID:            string(node.UID), MachineID: node.Status.NodeInfo.MachineID, Cordoned: node.Spec.Unschedulable,
			Marks: marks(&node), OS: node.Status.NodeInfo.OSImage, DataUntouched: untouched, Pods: pods.on(name),
		}
	}

	return snapshots, nil
}

// marks are what the update protocol and Stayput may put on a Node, and must take away again. The condition
// InPlaceUpdate stays, as Gardener's components leave it, so it is none of them.
func marks(node *corev1.Node) []string {
	var found []string

	for _, all := range []map[string]string{node.Labels, node.Annotations} {
		for key, value := range all {
			if strings.HasPrefix(key, "node.machine.sapcloud.io/") || strings.HasPrefix(key, "stayput.dev/") ||
				key == protocol.AnnotationScaleDownDisabled {
				found = append(found, key+"="+value)
			}
		}
	}

	slices.Sort(found)

	return found
}

// checkInvariants checks what must hold in every scenario.
func (r *Run) checkInvariants(ctx context.Context, world *World) error {
	after, err := r.snapshots(ctx)
	if err != nil {
		return err
	}

	errs := []error{r.checkQuiet(world), r.timeline.checkBudget(world), r.checkWrites()}

	for name, before := range r.before {
		errs = append(errs, compare(name, before, after[name]))
	}

	return errors.Join(errs...)
}

// compare says what an update has changed that it must not.
func compare(name string, before, after Snapshot) error {
	var errs []error

	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s: %s", ErrInvariant, name, fmt.Sprintf(format, args...)))
	}

	if before.UID != after.UID {
		bad("its Node object is another (UID %s, was %s)", after.UID, before.UID)
	}

	if before.HostGeneration != after.HostGeneration {
		bad("the spec of its BareMetalHost was written")
	}

	if before.MachineID != after.MachineID {
		bad("its machine-id is another (%s, was %s)", after.MachineID, before.MachineID)
	}

	if before.Cordoned != after.Cordoned {
		bad("cordoned is %v, was %v", after.Cordoned, before.Cordoned)
	}

	if !slices.Equal(before.Marks, after.Marks) {
		bad("labels and annotations are %v, were %v", after.Marks, before.Marks)
	}

	if !after.DataUntouched {
		bad("its data disk was written")
	}

	return errors.Join(errs...)
}

// checkQuiet proves, by the agents' counters and by the registry's log, that nothing was fetched or written between
// the drain and the end of each node's attempt.
func (r *Run) checkQuiet(world *World) error {
	requests, err := r.Lab.Registry.Requests(r.began)
	if err != nil {
		return err
	}

	var errs []error

	for name := range r.before {
		record := r.record(world, name)
		if record == nil || record.ReadyAt == nil {
			continue
		}

		if moved := world.Updates[name].Status.Counters.BytesSinceDrain; moved != 0 {
			errs = append(errs, fmt.Errorf("%w: %s moved %d bytes after the drain", ErrInvariant, name, moved))
		}

		for _, request := range requests {
			// The registry does not see which guest asks. A node that is not staging asks for no content, so what was
			// fetched while no other node was staging was fetched by this one.
			if r.content(request) && request.End.After(record.ReadyAt.Time) && request.Start.Before(record.EndedAt.Time) &&
				!r.timeline.othersStaging(name, request.Start, request.End) {
				errs = append(errs, fmt.Errorf("%w: %s was fetched after %s was drained, at %s",
					ErrInvariant, request.Path, name, request.Start.Format(time.RFC3339)))
			}
		}
	}

	return errors.Join(errs...)
}

// checkWrites proves by the API server's audit log, when the lab keeps one, that no agent has written what is not its own.
func (r *Run) checkWrites() error {
	writes, err := r.Lab.Cluster.Writes(r.began, trespass)
	if errors.Is(err, controlplane.ErrNoAudit) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("reading who wrote what: %w", err)
	}

	errs := make([]error, 0, len(writes))
	for _, write := range writes {
		errs = append(errs, fmt.Errorf("%w: %s wrote %s %s/%s at %s",
			ErrInvariant, write.User, write.Resource, write.Name, write.Subresource, write.At.Format(time.RFC3339)))
	}

	return errors.Join(errs...)
}

// trespass tells whether an agent has written an object of another node, or the spec of its own NodeUpdate.
func trespass(write controlplane.Write) bool {
	node, isAgent := strings.CutPrefix(write.User, controlplane.Agent("").User)
	if !isAgent || write.Code >= http.StatusBadRequest {
		return false
	}

	switch write.Resource {
	case "nodes":
		return write.Name != node
	case "nodeupdates":
		return write.Name != node || write.Subresource != "status"
	default:
		return false
	}
}

// content tells whether a request fetched a content of the scenario's image: images of pods come from the same registry,
// and the controller reads the configs of images.
func (r *Run) content(request registry.Request) bool {
	return request.Blob() && slices.ContainsFunc(r.image.Contents, func(content osimage.Content) bool {
		return strings.HasSuffix(request.Path, content.Digest)
	})
}

// timeline is what was observed, in order.
type timeline []moment

type moment struct {
	at          time.Time
	staging     []string
	unavailable []string
}

// with is the timeline with another observation. Felled nodes are unavailable only while they are cordoned.
func (t timeline) with(world *World, felled []string) timeline {
	unavailable := slices.DeleteFunc(world.Unavailable(), func(name string) bool {
		return slices.Contains(felled, name) && !world.Nodes[name].Spec.Unschedulable
	})

	return append(t, moment{at: world.At, staging: world.Staging, unavailable: unavailable})
}

// othersStaging tells whether a node but this one may have been staging at any time of the interval. Between two
// observations both count.
func (t timeline) othersStaging(name string, from, to time.Time) bool {
	for index, seen := range t {
		last := index+1 < len(t) && t[index+1].at.Before(from) // the next observation is before the interval, too
		first := index > 0 && t[index-1].at.After(to)          // the one before is after it already

		if last || first {
			continue
		}

		if slices.ContainsFunc(seen.staging, func(other string) bool { return other != name }) {
			return true
		}
	}

	return false
}

// checkBudget proves that never more nodes than maxUnavailable were unavailable at once.
func (t timeline) checkBudget(world *World) error {
	allowed := 1

	if limit := world.Pool.Spec.Strategy.MaxUnavailable; limit != nil {
		scaled, err := intstr.GetScaledValueFromIntOrPercent(limit, len(world.Nodes), false)
		if err != nil {
			return fmt.Errorf("reading maxUnavailable: %w", err)
		}

		allowed = max(1, scaled)
	}

	for _, seen := range t {
		if len(seen.unavailable) > allowed {
			return fmt.Errorf("%w: %v were unavailable at %s, at most %d may be",
				ErrInvariant, seen.unavailable, seen.at.Format(time.RFC3339), allowed)
		}
	}

	return nil
}
