package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phase is where an attempt is. The phases of a good attempt come in this order.
// +kubebuilder:validation:Enum=Idle;Staging;Staged;Arming;Rebooting;Proving;Reporting;Succeeded;RolledBack;Refused;NeedsHuman
type Phase string

// The phases.
const (
	// PhaseIdle: no attempt is asked for.
	PhaseIdle Phase = "Idle"
	// PhaseStaging: the image is written into the spare slot while the node serves.
	PhaseStaging Phase = "Staging"
	// PhaseStaged: every byte is on the disk and was read back; the agent waits for ReadyForUpdate.
	PhaseStaged Phase = "Staged"
	// PhaseArming: the node is drained; the spare slot is made the next boot, on trial.
	PhaseArming Phase = "Arming"
	// PhaseRebooting: the machine was told to reboot and has not come back.
	PhaseRebooting Phase = "Rebooting"
	// PhaseProving: the trial boot runs and its health gates are being passed.
	PhaseProving Phase = "Proving"
	// PhaseReporting: the boot is committed; the pods of the node are deleted and the result is reported.
	PhaseReporting Phase = "Reporting"
	// PhaseSucceeded: the node runs the release, committed.
	PhaseSucceeded Phase = "Succeeded"
	// PhaseRolledBack: the node runs the slot that it ran before.
	PhaseRolledBack Phase = "RolledBack"
	// PhaseRefused: the release cannot be put on this node; nothing that runs or boots was changed.
	PhaseRefused Phase = "Refused"
	// PhaseNeedsHuman: nothing more is done on its own; the message names the next action.
	PhaseNeedsHuman Phase = "NeedsHuman"
)

// Ended tells whether an attempt in this phase has come to its end.
func (p Phase) Ended() bool {
	switch p {
	case PhaseSucceeded, PhaseRolledBack, PhaseRefused, PhaseNeedsHuman:
		return true
	default:
		return false
	}
}

// Reason says why an attempt is where it is: a closed list.
// +kubebuilder:validation:Enum=NoAttempt;UpToDate;ReadingSlots;Downloading;RegistryUnavailable;KeysUnusable;IdentityUnusable;WaitingForReady;WaitingForCordon;WritingBootEntry;WaitingForBoot;WaitingForHealth;WaitingForCommit;DeletingPods;Committed;ImageInvalid;ImageUntrusted;ImageTooLarge;WrongArchitecture;VersionNotNewer;SourceTooOld;NoSpareSlot;BootEntryConflict;BootPartitionFull;SchemeUnsupported;StorageError;ArmFailed;RebootFailed;KernelOrInitrdFailed;HealthGateFailed;GateInterrupted;BootedUnexpectedSlot;CommitFailed;StateLost;AttemptSuperseded
type Reason string

// The reasons.
const (
	ReasonNoAttempt           Reason = "NoAttempt"
	ReasonUpToDate            Reason = "UpToDate"
	ReasonReadingSlots        Reason = "ReadingSlots" // what the slots have is read, so that only the rest is fetched
	ReasonDownloading         Reason = "Downloading"
	ReasonRegistryUnavailable Reason = "RegistryUnavailable" // transient: retried with back-off
	ReasonKeysUnusable        Reason = "KeysUnusable"        // the keys to verify the image with cannot be read: retried
	ReasonIdentityUnusable    Reason = "IdentityUnusable"    // staged; the agent's credentials would not outlast the reboot
	ReasonWaitingForReady     Reason = "WaitingForReady"     // staged; the orchestrator has not drained the node yet
	ReasonWaitingForCordon    Reason = "WaitingForCordon"    // asked to go, but the node is not cordoned
	ReasonWritingBootEntry    Reason = "WritingBootEntry"
	ReasonWaitingForBoot      Reason = "WaitingForBoot"
	ReasonWaitingForHealth    Reason = "WaitingForHealth"
	ReasonWaitingForCommit    Reason = "WaitingForCommit"
	ReasonDeletingPods        Reason = "DeletingPods"
	ReasonCommitted           Reason = "Committed"

	// Refusals: nothing that runs or boots was changed.

	ReasonImageInvalid      Reason = "ImageInvalid"   // not an image of ours, a wrong digest, a truncated layer
	ReasonImageUntrusted    Reason = "ImageUntrusted" // no trusted key signed it
	ReasonImageTooLarge     Reason = "ImageTooLarge"
	ReasonWrongArchitecture Reason = "WrongArchitecture"
	ReasonVersionNotNewer   Reason = "VersionNotNewer" // the boot loader takes the newest; an older version never boots
	ReasonSourceTooOld      Reason = "SourceTooOld"    // older than the image's minimum source version
	ReasonNoSpareSlot       Reason = "NoSpareSlot"
	ReasonBootEntryConflict Reason = "BootEntryConflict"
	ReasonBootPartitionFull Reason = "BootPartitionFull"
	ReasonSchemeUnsupported Reason = "SchemeUnsupported"
	ReasonStorageError      Reason = "StorageError"
	ReasonArmFailed         Reason = "ArmFailed"
	ReasonRebootFailed      Reason = "RebootFailed"

	// Fallbacks: the slot was tried and the node runs the old one again.

	ReasonKernelOrInitrdFailed Reason = "KernelOrInitrdFailed" // every try ended before our boot gate ran
	ReasonHealthGateFailed     Reason = "HealthGateFailed"
	ReasonGateInterrupted      Reason = "GateInterrupted" // the gate began and the machine went down before it ended

	// A person is needed.

	ReasonBootedUnexpectedSlot Reason = "BootedUnexpectedSlot"
	ReasonCommitFailed         Reason = "CommitFailed"
	ReasonStateLost            Reason = "StateLost"

	ReasonAttemptSuperseded Reason = "AttemptSuperseded"
)

// Rung is a step of the fallback ladder.
// +kubebuilder:validation:Enum=BootTries;BootGate;Watchdog;BMC;BootOverride;FleetHalt
type Rung string

// The rungs, lowest first.
const (
	RungBootTries    Rung = "BootTries"
	RungBootGate     Rung = "BootGate"
	RungWatchdog     Rung = "Watchdog"
	RungBMC          Rung = "BMC"
	RungBootOverride Rung = "BootOverride"
	RungFleetHalt    Rung = "FleetHalt"
)

// DoorKind says where a release comes from.
// +kubebuilder:validation:Enum=HostPool
type DoorKind string

// DoorHostPool is the door of HostPool objects.
const DoorHostPool DoorKind = "HostPool"

// Door names the object that owns a NodeUpdate's spec.
type Door struct {
	// Kind is the kind of door.
	Kind DoorKind `json:"kind"`
	// Namespace and Name are the object's, in the management cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Host is the BareMetalHost, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host"`
}

// OSRelease is an operating system image by digest.
type OSRelease struct {
	// Image is registry/repository@sha256:…
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^/@ ]+/[^@ ]+@sha256:[a-f0-9]{64}$')",message="must be registry/repository@sha256:<64 hex digits>; a door resolves tags"
	Image string `json:"image"`
	// Version is the version in the image's config.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version"`
}

// NodeRelease is what the node shall run, by digest.
type NodeRelease struct {
	// OS is the operating system image.
	OS OSRelease `json:"os"`
}

// NodeUpdateSpec is written by exactly one door.
// +kubebuilder:validation:XValidation:rule="self.attempt != oldSelf.attempt || self.release == oldSelf.release",message="release is fixed within an attempt; give attempt a new ID with it"
// +kubebuilder:validation:XValidation:rule="self.attempt != oldSelf.attempt || (has(self.verification) == has(oldSelf.verification) && (!has(self.verification) || self.verification == oldSelf.verification))",message="verification is fixed within an attempt; give attempt a new ID with it"
// +kubebuilder:validation:XValidation:rule="self.attempt != oldSelf.attempt || self.door == oldSelf.door",message="door is fixed within an attempt; give attempt a new ID with it"
type NodeUpdateSpec struct {
	// Door is who owns this spec.
	Door Door `json:"door"`
	// Attempt is the ID of the attempt that is asked for. It is never used twice.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="must be 1 to 63 lower-case letters, digits and dashes, so that it fits a label"
	Attempt string `json:"attempt"`
	// Release is what the node shall run.
	Release NodeRelease `json:"release"`
	// Verification says which signatures the node wants to see on it. Omitted: those of its own key folder only.
	// +optional
	Verification *NodeVerification `json:"verification,omitempty"`
	// Reboot bounds the reboot.
	// +kubebuilder:default={}
	// +optional
	Reboot RebootSettings `json:"reboot,omitzero"`
	// Health gives each health gate its deadline.
	// +kubebuilder:default={}
	// +optional
	Health HealthSettings `json:"health,omitzero"`
	// OutOfBand says what may be done through the BMC.
	// +kubebuilder:default={}
	// +optional
	OutOfBand OutOfBandSettings `json:"outOfBand,omitzero"`
}

// SlotStatus is a slot as it was observed.
type SlotStatus struct {
	// Name is "a" or "b".
	// +optional
	Name string `json:"name,omitempty"`
	// Version is the version of the OS in it; empty when the slot holds nothing that boots.
	// +optional
	Version string `json:"version,omitempty"`
	// Digest is the digest of the image that was written there by Stayput; empty when it was not.
	// +optional
	Digest string `json:"digest,omitempty"`
}

// Progress counts bytes. The agent writes it after each fifth of the work, so it may be a little old.
type Progress struct {
	// BytesDone and BytesTotal are raw bytes written to the slot, verified, of the whole image.
	BytesDone  int64 `json:"bytesDone"`
	BytesTotal int64 `json:"bytesTotal"`
	// BytesRead and BytesToRead are bytes of the slots that are read to find out what need not be fetched. Like
	// BytesToFetch, BytesToRead grows when the next content of the image is begun.
	// +optional
	BytesRead int64 `json:"bytesRead,omitempty"`
	// +optional
	BytesToRead int64 `json:"bytesToRead,omitempty"`
	// BytesFetched and BytesToFetch are bytes from the registry, compressed, chunk indexes included. When staging was
	// interrupted, those from before are not in them: what they became is reused.
	// +optional
	BytesFetched int64 `json:"bytesFetched,omitempty"`
	// +optional
	BytesToFetch int64 `json:"bytesToFetch,omitempty"`
	// BytesReused are raw bytes that the slots have already, and that are not fetched.
	// +optional
	BytesReused int64 `json:"bytesReused,omitempty"`
	// EstimatedEnd is when all will be written, at the rate of the half minute before.
	// +optional
	EstimatedEnd *metav1.Time `json:"estimatedEnd,omitempty"`
}

// Counters grow for the life of the agent's journal. They prove that nothing is fetched or written during the outage.
type Counters struct {
	// BytesDownloaded is bytes read from registries, blobs only.
	BytesDownloaded int64 `json:"bytesDownloaded"`
	// SlotBytesWritten is bytes written to slots and boot files.
	SlotBytesWritten int64 `json:"slotBytesWritten"`
	// BytesSinceDrain is the bytes of both kinds since ReadyForUpdate was seen, without the boot entry's own rename.
	BytesSinceDrain int64 `json:"bytesSinceDrain"`
}

// RungState says whether a rung of the ladder can be relied on at this node.
// +kubebuilder:validation:Enum=Ready;Missing
type RungState string

// The states.
const (
	RungReady   RungState = "Ready"
	RungMissing RungState = "Missing"
)

// RungStatus is a rung and its state.
type RungStatus struct {
	// Rung is which.
	Rung Rung `json:"rung"`
	// State is Ready or Missing.
	State RungState `json:"state"`
	// Message says what was found, and what to do when it is missing.
	// +optional
	Message string `json:"message,omitempty"`
}

// AttemptRecord is an attempt that has ended.
type AttemptRecord struct {
	// ID is the attempt's.
	ID string `json:"id"`
	// Phase is how it ended.
	Phase Phase `json:"phase"`
	// Reason is why.
	Reason Reason `json:"reason"`
	// Message is what was seen.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// Version and Digest are what was tried.
	Version string `json:"version"`
	Digest  string `json:"digest"`
	// Rung is the rung that brought the node back, when it fell back.
	// +optional
	Rung Rung `json:"rung,omitempty"`
	// StartedAt is when the agent took the attempt up; ReadyAt when the node was drained; RebootedAt when the reboot
	// was asked for; BackAt when the agent ran again; EndedAt when the attempt ended.
	StartedAt metav1.Time `json:"startedAt"`
	// +optional
	ReadyAt *metav1.Time `json:"readyAt,omitempty"`
	// +optional
	RebootedAt *metav1.Time `json:"rebootedAt,omitempty"`
	// +optional
	BackAt *metav1.Time `json:"backAt,omitempty"`
	// +optional
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
}

// NodeUpdate conditions.
const (
	// ConditionStaged is True when the release of the attempt named in its message's attempt is in the spare slot.
	ConditionStaged = "Staged"
	// ConditionFallbackReady is True when every in-OS rung of the ladder is there.
	ConditionFallbackReady = "FallbackReady"
)

// NodeUpdateStatus is written by the agent, but for OutOfBand.
type NodeUpdateStatus struct {
	// ObservedGeneration is the generation of the spec that this status answers.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Attempt is the attempt that Phase, Reason, Progress and Deadline are about.
	// +optional
	Attempt string `json:"attempt,omitempty"`
	// Phase is where the attempt is.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Reason is why it is there.
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// Message says the same in words, with the next action.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// Deadline is when the present wait ends.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// Heartbeat is when the agent last wrote; BootID the kernel's boot ID at that time.
	// +optional
	Heartbeat *metav1.Time `json:"heartbeat,omitempty"`
	// +optional
	BootID string `json:"bootID,omitempty"`
	// AgentVersion is the agent's.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// Scheme is the slot scheme, "dps".
	// +optional
	Scheme string `json:"scheme,omitempty"`
	// Running is the slot that runs; KnownGood the committed slot that the node returns to.
	// +optional
	Running SlotStatus `json:"running,omitzero"`
	// +optional
	KnownGood SlotStatus `json:"knownGood,omitzero"`
	// Progress of staging.
	// +optional
	Progress *Progress `json:"progress,omitempty"`
	// Counters of bytes.
	// +optional
	Counters Counters `json:"counters,omitzero"`
	// RebootedAt is when the machine was told to reboot, while it is out.
	// +optional
	RebootedAt *metav1.Time `json:"rebootedAt,omitempty"`
	// Rungs are the in-OS rungs of the fallback ladder as they were found.
	// +optional
	// +listType=map
	// +listMapKey=rung
	Rungs []RungStatus `json:"rungs,omitempty"`
	// History holds the last attempts that ended, newest first, 5 at most.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	History []AttemptRecord `json:"history,omitempty"`
	// Conditions: Staged, FallbackReady, and ReleaseVerified, which is what the node has found of the signatures of the
	// attempt's image; it is absent where neither the pool nor the node's own key folder asks for any.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// OutOfBand is the BMC rung's part. It has its own writer.
	// +optional
	OutOfBand *OutOfBandStatus `json:"outOfBand,omitempty"`
}

// NodeUpdate is what one Node shall run, and how far it is.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nu,categories=stayput
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Slot",type=string,JSONPath=`.status.running.name`
// +kubebuilder:printcolumn:name="Running",type=string,JSONPath=`.status.running.version`
// +kubebuilder:printcolumn:name="Wanted",type=string,JSONPath=`.spec.release.os.version`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="BMC",type=string,JSONPath=`.status.outOfBand.phase`
// +kubebuilder:printcolumn:name="Deadline",type=string,JSONPath=`.status.deadline`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeUpdate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NodeUpdateSpec `json:"spec,omitzero"`
	// +optional
	Status NodeUpdateStatus `json:"status,omitzero"`
}

// NodeUpdateList is a list of NodeUpdates.
//
// +kubebuilder:object:root=true
type NodeUpdateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeUpdate `json:"items"`
}
