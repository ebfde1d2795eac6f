package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Orchestrator says who moves the nodes of a pool through the label protocol.
// +kubebuilder:validation:Enum=Stayput
type Orchestrator string

// OrchestratorStayput selects, cordons and drains the nodes itself.
const OrchestratorStayput Orchestrator = "Stayput"

// StrategyType says who selects the next node.
// +kubebuilder:validation:Enum=AutoInPlaceUpdate;ManualInPlaceUpdate
type StrategyType string

// The strategies, named as in Gardener's Shoot API.
const (
	// AutoInPlaceUpdate selects nodes within maxUnavailable.
	AutoInPlaceUpdate StrategyType = "AutoInPlaceUpdate"
	// ManualInPlaceUpdate waits until a person sets the label selected-for-update on a candidate.
	ManualInPlaceUpdate StrategyType = "ManualInPlaceUpdate"
)

// ProtocolDialect is one of the two wire forms of Gardener's label protocol; see package protocol.
// +kubebuilder:validation:Enum=Shipped;GEP0031
type ProtocolDialect string

// The dialects.
const (
	DialectShipped ProtocolDialect = "Shipped"
	DialectGEP0031 ProtocolDialect = "GEP0031"
)

// HostPoolSpec is what the operator wants.
type HostPoolSpec struct {
	// HostSelector picks the BareMetalHosts of this namespace that belong to the pool. It must not be empty: an empty
	// selector would pick every host.
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="an empty selector picks every host of the namespace; give it at least one label or expression"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))",message="matchExpressions: operator must be In or NotIn with values, or Exists or DoesNotExist without"
	HostSelector metav1.LabelSelector `json:"hostSelector"`
	// Cluster is where the Nodes of these hosts live. Omitted: the cluster that the HostPool is in.
	// +optional
	Cluster *ClusterReference `json:"cluster,omitempty"`
	// Orchestrator says who moves the nodes. Default Stayput.
	// +kubebuilder:default=Stayput
	// +optional
	Orchestrator Orchestrator `json:"orchestrator,omitempty"`
	// Release is what the nodes shall run.
	Release Release `json:"release"`
	// Verification says which signatures the release needs. Default: none.
	// +optional
	Verification VerificationSettings `json:"verification,omitzero"`
	// Strategy says how nodes are chosen, and how many at a time.
	// +kubebuilder:default={}
	// +optional
	Strategy Strategy `json:"strategy,omitzero"`
	// Paused stops the pool from starting anything new; an update that is under way is finished. Default false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// Drain bounds the drain.
	// +kubebuilder:default={}
	// +optional
	Drain DrainSettings `json:"drain,omitzero"`
	// Reboot bounds the reboot.
	// +kubebuilder:default={}
	// +optional
	Reboot RebootSettings `json:"reboot,omitzero"`
	// Health gives each health gate of the trial boot its deadline.
	// +kubebuilder:default={}
	// +optional
	Health HealthSettings `json:"health,omitzero"`
	// OutOfBand says what may be done through the BMC.
	// +kubebuilder:default={}
	// +optional
	OutOfBand OutOfBandSettings `json:"outOfBand,omitzero"`
}

// ClusterReference names another cluster.
type ClusterReference struct {
	// KubeconfigSecretName is a Secret of the pool's namespace whose key "value" (as Cluster API writes it) or
	// "kubeconfig" holds a kubeconfig.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	KubeconfigSecretName string `json:"kubeconfigSecretName"`
}

// Release is what a node shall run.
type Release struct {
	// OS is the operating system image.
	OS ImageSource `json:"os"`
}

// ImageSource names an OCI artifact.
type ImageSource struct {
	// Image is registry/repository with a tag or a digest. A tag is resolved to a digest once, when it is first seen;
	// a new value, not a moved tag, starts a new rollout.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9.-]+|[[][0-9A-Fa-f:]+[]])(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?@sha256:[a-f0-9]{64})$')",message="must be registry/repository:tag or registry/repository@sha256:<64 hex digits>, without a scheme"
	Image string `json:"image"`
	// PullSecretName is a Secret of the pool's namespace of type kubernetes.io/dockerconfigjson with which the
	// controller resolves the image; an optional key "ca.crt" holds the registry's CA. Nodes have their own access.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PullSecretName string `json:"pullSecretName,omitempty"`
	// PlainHTTP allows a registry without TLS. Default false.
	// +optional
	PlainHTTP bool `json:"plainHTTP,omitempty"`
}

// Strategy says how nodes are chosen, and how many at a time.
type Strategy struct {
	// Type says who selects the next node. Default AutoInPlaceUpdate.
	// +kubebuilder:default=AutoInPlaceUpdate
	// +optional
	Type StrategyType `json:"type,omitempty"`
	// MaxUnavailable bounds how many nodes of the pool may be unavailable when another is selected, whatever the
	// cause: a number, or a percentage of the pool that is rounded down, but never below 1. Default 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9]|[1-9][0-9]|100)%$')",message="must be a number of at least 1 or a percentage from 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Dialect is the wire form in which nodes are asked. Default Shipped.
	// +kubebuilder:default=Shipped
	// +optional
	Dialect ProtocolDialect `json:"dialect,omitempty"`
}

// DrainSettings bounds the drain.
type DrainSettings struct {
	// Timeout is how long the drain may take. When it has passed the attempt ends with reason DrainTimeout, the node
	// is uncordoned, and the release is not poisoned. Default 2h.
	// +kubebuilder:default="2h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,6})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="must be a duration from 1s to 168h, as in 90s, 15m or 1h30m"
	// +optional
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// DeletePodsWithLocalStorage allows the drain to delete pods that use emptyDir. Default false: such a pod blocks
	// the drain, with a reason that names it.
	// +optional
	DeletePodsWithLocalStorage bool `json:"deletePodsWithLocalStorage,omitempty"`
	// DeleteUnmanagedPods allows the drain to delete pods that no controller will start again. Default false.
	// +optional
	DeleteUnmanagedPods bool `json:"deleteUnmanagedPods,omitempty"`
}

// HostPool conditions.
const (
	// ConditionReady is True when every node of the pool runs the release.
	ConditionReady = "Ready"
	// ConditionProgressing is True while any node is on its way.
	ConditionProgressing = "Progressing"
	// ConditionHalted is True when the rollout stopped because the release failed on a node.
	ConditionHalted = "Halted"
	// ConditionClusterReachable is False when the cluster of the Nodes cannot be reached.
	ConditionClusterReachable = "ClusterReachable"
	// ConditionReleaseResolved is True when the image was resolved to a digest and its config is known.
	ConditionReleaseResolved = "ReleaseResolved"
	// ConditionReleaseVerified tells whether a trusted key signed the release; absent with verification policy Off. A
	// NodeUpdate has it, too, about what the node itself has found.
	ConditionReleaseVerified = "ReleaseVerified"
	// ConditionHostsLinked is False when a host of the pool has no Node, or when several Nodes claim it.
	ConditionHostsLinked = "HostsLinked"
)

// Reasons of HostPool conditions: a closed list. Each message names the next action.
const (
	ReasonAllUpdated         = "AllUpdated"
	ReasonUpdating           = "Updating"
	ReasonPaused             = "Paused"
	ReasonWaitingForSelect   = "WaitingForManualSelection"
	ReasonWaitingForBudget   = "WaitingForBudget"
	ReasonWaitingForStaging  = "WaitingForStaging"
	ReasonReleaseFailed      = "ReleaseFailed"
	ReasonNotHalted          = "NotHalted"
	ReasonResolved           = "Resolved"
	ReasonResolveFailed      = "ResolveFailed"
	ReasonVerified           = "Verified"
	ReasonReleaseUntrusted   = "ImageUntrusted"
	ReasonPublicKeysInvalid  = "PublicKeysInvalid"
	ReasonReachable          = "Reachable"
	ReasonUnreachable        = "Unreachable"
	ReasonKubeconfigInvalid  = "KubeconfigInvalid"
	ReasonLinked             = "Linked"
	ReasonNoHosts            = "NoHosts"
	ReasonNoNode             = "NoNode"
	ReasonAmbiguousNode      = "AmbiguousNode"
	ReasonNodeOwnedByAnother = "NodeOwnedByAnotherPool"
	ReasonNeedsHuman         = "NeedsHuman"
	ReasonAgentSilent        = "AgentSilent"
)

// HostPoolStatus is what the controller last saw.
type HostPoolStatus struct {
	// ObservedGeneration is the generation of the spec that this status answers.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Release is spec.release, resolved.
	// +optional
	Release *ResolvedRelease `json:"release,omitempty"`
	// Hosts is the number of hosts that the selector picks.
	// +optional
	Hosts int32 `json:"hosts"`
	// Nodes is the number of Nodes that were found for them.
	// +optional
	Nodes int32 `json:"nodes"`
	// Updated is the number of Nodes that run the release, committed.
	// +optional
	Updated int32 `json:"updated"`
	// Updating is the number of Nodes that are selected and not finished.
	// +optional
	Updating int32 `json:"updating"`
	// Unavailable is the number of Nodes that are not Ready or are cordoned, whatever the cause.
	// +optional
	Unavailable int32 `json:"unavailable"`
	// Failed is the number of Nodes whose last attempt at this release did not succeed.
	// +optional
	Failed int32 `json:"failed"`
	// Poisoned are the image digests that failed on a node of this pool. They are never tried again on their own;
	// `stayput retry` lifts one. The newest 16 are kept.
	// +optional
	// +listType=map
	// +listMapKey=digest
	// +kubebuilder:validation:MaxItems=16
	Poisoned []PoisonedRelease `json:"poisoned,omitempty"`
	// Conditions: Ready, Progressing, Halted, ClusterReachable, ReleaseResolved, ReleaseVerified, HostsLinked.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ResolvedRelease is a release by digest.
type ResolvedRelease struct {
	// Image is the spec value that was resolved.
	Image string `json:"image"`
	// Digest is the digest of the image, or of the index of images, that it had: "sha256:…".
	Digest string `json:"digest"`
	// Version is the version in the image's config.
	Version string `json:"version"`
	// ResolvedAt is when.
	ResolvedAt metav1.Time `json:"resolvedAt"`
	// Signature is what was found of its signatures; absent with verification policy Off.
	// +optional
	Signature *ReleaseSignature `json:"signature,omitempty"`
}

// PoisonedRelease is an image that failed on a node.
type PoisonedRelease struct {
	// Digest is that of the image, or of the index of images for several architectures.
	Digest string `json:"digest"`
	// Version is the image's version.
	// +optional
	Version string `json:"version,omitempty"`
	// Node is where it failed first.
	Node string `json:"node"`
	// Attempt is the attempt that failed.
	Attempt string `json:"attempt"`
	// Reason is what was seen.
	Reason string `json:"reason"`
	// At is when.
	At metav1.Time `json:"at"`
}

// HostPool is a set of BareMetalHosts that shall run one release.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=hp,categories=stayput
// +kubebuilder:printcolumn:name="Release",type=string,JSONPath=`.status.release.version`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updated`
// +kubebuilder:printcolumn:name="Updating",type=integer,JSONPath=`.status.updating`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="Halted",type=string,JSONPath=`.status.conditions[?(@.type=="Halted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type HostPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec HostPoolSpec `json:"spec,omitzero"`
	// +optional
	Status HostPoolStatus `json:"status,omitzero"`
}

// HostPoolList is a list of HostPools.
//
// +kubebuilder:object:root=true
type HostPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []HostPool `json:"items"`
}
