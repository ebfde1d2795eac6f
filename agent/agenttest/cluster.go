package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// ErrAway is what a cluster or a registry that is away answers.
var ErrAway = errors.New("connection refused")

// errPatchType is for a patch that this cluster does not know.
var errPatchType = errors.New("unknown patch type")

// Cluster is an API server with one Node and its NodeUpdate, and the orchestrator's side of the protocol.
type Cluster struct {
	// Machine is looked at when a result is written: success must be true.
	Machine *Machine
	// Away makes every call fail; the views stay what they were. Unknown makes them empty, as after a start.
	Away, Unknown bool
	// Dialect is the one in which the orchestrator speaks.
	Dialect protocol.Dialect
	// Writes counts status and Node writes of the agent; PodDeletions is by attempt.
	Writes       int
	PodDeletions int
	// Results are the answers that were written, in order.
	Results []Answer
	// Statuses are all that were written.
	Statuses []v1alpha1.NodeUpdateStatus

	node   *corev1.Node
	update *v1alpha1.NodeUpdate
}

// Answer is a result that the agent wrote on the Node.
type Answer struct {
	Attempt string
	Result  protocol.Result
	Failure string
}

// NewCluster has a Node that is not cordoned and nothing to update.
func NewCluster(machine *Machine) *Cluster {
	return &Cluster{
		Machine: machine, Dialect: protocol.Shipped,
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node", ResourceVersion: "1"}},
	}
}

// Ask makes the NodeUpdate ask for a version, in a new attempt.
func (c *Cluster) Ask(attempt, version string) {
	if c.update == nil {
		c.update = &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "update"}}
	}

	next := c.update.DeepCopy()
	next.Generation++
	next.Spec = v1alpha1.NodeUpdateSpec{
		Attempt: attempt, Reboot: v1alpha1.RebootSettings{Tries: 3},
		Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{Image: Reference(version), Version: version}},
	}
	c.update = next
	c.orchestrate(protocol.MarkCandidate(c.node, attempt))
}

// Verify makes the NodeUpdate want signatures. It is called right after Ask, since they are fixed within an attempt.
func (c *Cluster) Verify(verification *v1alpha1.NodeVerification) {
	next := c.update.DeepCopy()
	next.Spec.Verification = verification
	c.update = next
}

// Forget deletes the NodeUpdate.
func (c *Cluster) Forget() { c.update = nil }

// Reference is the reference of a version's image.
func Reference(version string) string {
	return "registry.example/os@sha256:" + fmt.Sprintf("%064x", []byte("digest "+version))
}

// Drain selects, cordons and drains the node, and lets the agent go.
func (c *Cluster) Drain(cordon bool) {
	attempt := protocol.Read(c.node).Attempt

	c.orchestrate(protocol.Select(c.node))

	if cordon {
		c.orchestrate(protocol.Cordon(c.node, attempt))
	}

	for _, reason := range []protocol.Reason{
		protocol.ReasonCandidate, protocol.ReasonSelected, protocol.ReasonDrainSuccessful, protocol.ReasonReady,
	} {
		c.orchestrate(protocol.SetReason(c.node, c.Dialect, reason, "", time.Unix(0, 0)))
	}
}

// Uncordon is what a person may do at any time.
func (c *Cluster) Uncordon() {
	node := c.node.DeepCopy()
	node.Spec.Unschedulable = false
	c.node = node
}

// Release cleans the Node after a result.
func (c *Cluster) Release() {
	c.orchestrate(protocol.Release(c.node, protocol.Read(c.node).Attempt))
}

// View is what the Node says.
func (c *Cluster) View() protocol.View { return protocol.Read(c.node) }

// Status is the NodeUpdate's.
func (c *Cluster) Status() v1alpha1.NodeUpdateStatus {
	if c.update == nil {
		return v1alpha1.NodeUpdateStatus{}
	}

	return c.update.Status
}

// Reset notes that the BMC rung has reset the machine.
func (c *Cluster) Reset() {
	next := c.update.DeepCopy()
	if next.Status.OutOfBand == nil {
		next.Status.OutOfBand = &v1alpha1.OutOfBandStatus{Attempt: next.Spec.Attempt}
	}

	next.Status.OutOfBand.Resets++
	c.update = next
}

func (c *Cluster) orchestrate(patch *protocol.Patch) {
	if patch == nil {
		return
	}

	if err := c.apply(*patch); err != nil {
		panic(fmt.Sprintf("the orchestrator's patch does not apply: %v", err)) // An error in this package.
	}
}

func (c *Cluster) apply(patch protocol.Patch) error {
	before, err := json.Marshal(c.node)
	if err != nil {
		return fmt.Errorf("encoding the Node: %w", err)
	}

	var after []byte

	switch patch.Type {
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, patch.Data)
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, patch.Data, corev1.Node{})
	default:
		return fmt.Errorf("%w %s", errPatchType, patch.Type)
	}

	if err != nil {
		return fmt.Errorf("patching the Node: %w", err)
	}

	node := &corev1.Node{}
	if err := json.Unmarshal(after, node); err != nil {
		return fmt.Errorf("decoding the Node: %w", err)
	}

	c.node = node

	return nil
}

// Update implements agent.Cluster.
func (c *Cluster) Update() (*v1alpha1.NodeUpdate, bool) {
	if c.Unknown {
		return nil, false
	}

	return c.update, true
}

// Node implements agent.Cluster.
func (c *Cluster) Node() *corev1.Node {
	if c.Unknown {
		return nil
	}

	return c.node
}

// Changed implements agent.Cluster; nothing waits for it.
func (c *Cluster) Changed() <-chan struct{} { return nil }

// ApplyStatus implements agent.Cluster.
func (c *Cluster) ApplyStatus(_ context.Context, status v1alpha1.NodeUpdateStatus) error {
	c.Machine.point("status")

	if c.Away || c.update == nil {
		return ErrAway
	}

	c.Writes++
	next := c.update.DeepCopy()
	status.OutOfBand = next.Status.OutOfBand
	next.Status = status
	c.update = next
	c.Statuses = append(c.Statuses, status)
	c.Machine.point("status-written")

	return nil
}

// PatchNode implements agent.Cluster.
func (c *Cluster) PatchNode(_ context.Context, patch protocol.Patch) error {
	c.Machine.point("patch-node")

	if c.Away {
		return ErrAway
	}

	c.Writes++

	if err := c.apply(patch); err != nil {
		return err
	}

	view := c.View()
	c.Results = append(c.Results, Answer{Attempt: view.ResultAttempt, Result: view.Result, Failure: view.Failure})

	if version, committed := c.Machine.Running(); view.Result == protocol.Successful &&
		(!committed || version != c.update.Spec.Release.OS.Version) {
		c.Machine.brokef("reported success while version %s runs, committed: %v", version, committed)
	}

	c.Machine.point("node-patched")

	return nil
}

// DeletePods implements agent.Cluster.
func (c *Cluster) DeletePods(context.Context) (int, error) {
	c.Machine.point("delete-pods")

	if c.Away {
		return 0, ErrAway
	}

	c.PodDeletions++
	c.Machine.point("pods-deleted")

	return 1, nil
}

// Registry implements agent.Images.
type Registry struct {
	// Errors are given out first, one a call.
	Errors []error
	// Asked counts the calls, and Wanted are the signatures that each wanted to see.
	Asked  int
	Wanted []*v1alpha1.NodeVerification
	// Signature is what is found of the signatures.
	Signature *journal.Signature
}

// Image implements agent.Images.
func (r *Registry) Image(
	_ context.Context, reference string, verification *v1alpha1.NodeVerification,
) (agent.Image, error) {
	r.Asked++
	r.Wanted = append(r.Wanted, verification)

	if len(r.Errors) > 0 {
		err := r.Errors[0]
		r.Errors = r.Errors[1:]

		return agent.Image{}, err
	}

	for major := range 10 {
		for minor := range 10 {
			if version := fmt.Sprintf("%d.%d.0", major, minor); Reference(version) == reference {
				return agent.Image{Source: source{version}, Signature: r.Signature}, nil
			}
		}
	}

	return agent.Image{}, &osimage.Error{Kind: osimage.ErrNotAnImage, Subject: reference}
}

type source struct{ version string }

// Config implements slots.Source.
func (s source) Config() osimage.Config { return Config(s.version) }

// Open implements slots.Source.
func (s source) Open(context.Context, osimage.Role, int64) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("")), nil
}
