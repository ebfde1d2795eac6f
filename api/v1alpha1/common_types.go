package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Field managers: who writes which part of a NodeUpdate (and, for the first two, of a Node).
const (
	// FieldManagerOrchestrator writes HostPool status, NodeUpdate spec, and the orchestrator's labels on Nodes.
	FieldManagerOrchestrator = "stayput-orchestrator"
	// FieldManagerAgent writes NodeUpdate status (without outOfBand) and the agent's labels on its own Node.
	FieldManagerAgent = "stayput-agent"
	// FieldManagerOutOfBand writes NodeUpdate status.outOfBand.
	FieldManagerOutOfBand = "stayput-outofband"
)

// AnnotationRetry on a HostPool asks the controller to lift the poison of the image digest that is its value
// ("sha256:…"), and with it the halt of the rollout. The controller removes the annotation once it has acted.
const AnnotationRetry = "stayput.dev/retry"

// HealthSettings gives each gate of a trial boot its deadline. All deadlines count from the start of the boot gate.
type HealthSettings struct {
	// APIServer is how long the node may take to reach the API server. Default 5m.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"
	// +optional
	APIServer metav1.Duration `json:"apiServer,omitzero"`
	// ContainerRuntime is how long containerd may take to answer on its socket. Default 5m.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"
	// +optional
	ContainerRuntime metav1.Duration `json:"containerRuntime,omitzero"`
	// Kubelet is how long the kubelet may take to answer 200 on /healthz. Default 5m.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"
	// +optional
	Kubelet metav1.Duration `json:"kubelet,omitzero"`
	// NodeReady is how long the Node may take to be Ready with this boot's ID. Default 10m.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"
	// +optional
	NodeReady metav1.Duration `json:"nodeReady,omitzero"`
}

// DefaultSilentAfter is the default of spec.reboot.silentAfter, for objects that were made before it had one.
const DefaultSilentAfter = 15 * time.Minute

// RebootSettings bounds the reboot.
type RebootSettings struct {
	// Tries is how often the boot loader may start the new slot before it falls back. Default 3.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	// +optional
	Tries int32 `json:"tries,omitempty"`
	// SilentAfter is how long a machine that was told to reboot may stay silent before it is looked at through its
	// BMC. It includes shutdown, POST and boot, and where a new version that comes up without a network is to fall back
	// by itself before it is reset, also the deadline of health.apiServer and the same once more. While the machine is
	// proved the longest deadline of health is added, and while its slot is armed 10 minutes; when its agent reports it
	// is 3 minutes at least. It is also how long an agent may owe an answer before the HostPool says AgentSilent.
	// Default 15m.
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"
	// +optional
	SilentAfter metav1.Duration `json:"silentAfter,omitzero"`
}

// Patience is SilentAfter, or its default.
func (r *RebootSettings) Patience() time.Duration {
	if r.SilentAfter.Duration <= 0 {
		return DefaultSilentAfter
	}

	return r.SilentAfter.Duration
}

// PowerPath is a way to the power of a machine.
// +kubebuilder:validation:Enum=BMC;Metal3
type PowerPath string

// The ways.
const (
	// PowerViaBMC drives the BMC.
	PowerViaBMC PowerPath = "BMC"
	// PowerViaMetal3 asks Metal3's baremetal-operator.
	PowerViaMetal3 PowerPath = "Metal3"
)

// OutOfBandSettings says what may be done through the BMC of a machine that is silent.
type OutOfBandSettings struct {
	// Disabled forbids every power action. The machine is still observed.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
	// MaxResets is how often one attempt may reset the machine before a person is asked. Each reset costs one try of
	// the boot counter, so MaxResets of at least reboot.tries lets the fallback finish. Default 4.
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	// +optional
	MaxResets *int32 `json:"maxResets,omitempty"`
	// SilentAfterReset is how long the machine may stay silent after a reset before the next one. Two resets of an
	// attempt are never closer, also when it showed life in between. Default 10m.
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"
	// +optional
	SilentAfterReset metav1.Duration `json:"silentAfterReset,omitzero"`
	// PowerVia says who switches the power. BMC: the controller, through the machine's BMC. Metal3: baremetal-operator,
	// which is asked to keep the machine off, and then not any more, by the annotation reboot.metal3.io/stayput of the
	// BareMetalHost. A host that is detached from Metal3, and one with spec.disablePowerOff, is reached through its BMC
	// whatever is said here. Default BMC.
	// +kubebuilder:default=BMC
	// +optional
	PowerVia PowerPath `json:"powerVia,omitempty"`
	// MaxSilent bounds how many of the pool's other Nodes may have fallen silent since shortly before this one: when
	// more have, it is rather the network than the machines, and none is reset until they are back. Nodes that are
	// rebooting for an update do not count. A number, or a percentage of those other Nodes that is rounded down, but never
	// below 1; 100% lets every reset pass. Default 20%.
	// +kubebuilder:default="20%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9]|[1-9][0-9]|100)%$')",message="must be a number of at least 1 or a percentage from 1% to 100%"
	// +optional
	MaxSilent *intstr.IntOrString `json:"maxSilent,omitempty"`
}
