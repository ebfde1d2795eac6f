package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PowerState is what a BMC says of its machine.
// +kubebuilder:validation:Enum=On;Off;Transition;Unknown
type PowerState string

// The states.
const (
	PowerOn         PowerState = "On"
	PowerOff        PowerState = "Off"
	PowerTransition PowerState = "Transition"
	PowerUnknown    PowerState = "Unknown"
)

// OutOfBandPhase is where the BMC rung is.
// +kubebuilder:validation:Enum=Watching;Silent;Resetting;NeedsHuman;Recovered
type OutOfBandPhase string

// The phases.
const (
	OutOfBandWatching   OutOfBandPhase = "Watching"
	OutOfBandSilent     OutOfBandPhase = "Silent"
	OutOfBandResetting  OutOfBandPhase = "Resetting"
	OutOfBandNeedsHuman OutOfBandPhase = "NeedsHuman"
	OutOfBandRecovered  OutOfBandPhase = "Recovered"
)

// OutOfBandReason says why the BMC rung is where it is: a closed list.
// +kubebuilder:validation:Enum=WaitingForMachine;DeadlinePassed;BMCUnreachable;BMCCredentials;HostBusy;HostNotFound;PowerInUse;PoolSilent;PowerLimited;Disabled;PowerActionSent;WaitingAfterReset;ResetsUsedUp;MachineBack
type OutOfBandReason string

// The reasons.
const (
	OutOfBandWaitingForMachine OutOfBandReason = "WaitingForMachine"
	OutOfBandDeadlinePassed    OutOfBandReason = "DeadlinePassed"
	OutOfBandBMCUnreachable    OutOfBandReason = "BMCUnreachable"
	OutOfBandBMCCredentials    OutOfBandReason = "BMCCredentials"
	// OutOfBandHostBusy: another works on it (provisioning, servicing, paused, being detached).
	OutOfBandHostBusy OutOfBandReason = "HostBusy"
	// OutOfBandPowerInUse: another has the Lease of the host's power, or it may not be taken.
	OutOfBandPowerInUse   OutOfBandReason = "PowerInUse"
	OutOfBandHostNotFound OutOfBandReason = "HostNotFound"
	// OutOfBandPoolSilent: so many Nodes of the pool fell silent together that it is rather the network than this machine.
	OutOfBandPoolSilent OutOfBandReason = "PoolSilent"
	// OutOfBandPowerLimited: the controller has sent as many power actions as it may in a minute.
	OutOfBandPowerLimited      OutOfBandReason = "PowerLimited"
	OutOfBandDisabled          OutOfBandReason = "Disabled"
	OutOfBandPowerActionSent   OutOfBandReason = "PowerActionSent"
	OutOfBandWaitingAfterReset OutOfBandReason = "WaitingAfterReset"
	OutOfBandResetsUsedUp      OutOfBandReason = "ResetsUsedUp"
	OutOfBandMachineBack       OutOfBandReason = "MachineBack"
)

// PowerIntent is a power action that was decided. It is stored before the action is sent.
type PowerIntent struct {
	// ID names the action within the attempt: attempt ID, number of the reset and action. One that was withdrawn before
	// it was sent may be decided anew under the same ID.
	ID string `json:"id"`
	// Action is GracefulRestart, or GracefulShutdown and On, for a machine whose operating system answers; otherwise
	// ForceRestart, ForceOff and On, or PowerCycle, whichever the BMC offers.
	// +kubebuilder:validation:Enum=GracefulRestart;GracefulShutdown;ForceRestart;ForceOff;On;PowerCycle
	Action string `json:"action"`
	// BootFrom is what the machine is to boot from once; absent: what its firmware says.
	// +kubebuilder:validation:Enum=Disk
	// +optional
	BootFrom string `json:"bootFrom,omitempty"`
	// DecidedAt is when; ObservedPower what the BMC had said just before.
	DecidedAt     metav1.MicroTime `json:"decidedAt"`
	ObservedPower PowerState       `json:"observedPower"`
	// SentAt is when the BMC accepted it; absent while that is not known.
	// +optional
	SentAt *metav1.MicroTime `json:"sentAt,omitempty"`
	// Refusal is what the BMC said when it refused it; absent: it did not. Some BMCs carry out what they refuse.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Refusal string `json:"refusal,omitempty"`
}

// PowerEvent is a change of the power that was seen, or an action.
type PowerEvent struct {
	// At is when it was seen, sent, or, when it is not known whether it was sent, decided.
	At metav1.Time `json:"at"`
	// Power is what the BMC said; absent for an action.
	// +optional
	Power PowerState `json:"power,omitempty"`
	// Action is what was sent; absent for a change of the power.
	// +optional
	Action string `json:"action,omitempty"`
	// Unknown: the action's answer was lost, it may not have been sent.
	// +optional
	Unknown bool `json:"unknown,omitempty"`
	// Refused: the BMC refused the action, and says that it has not acted.
	// +optional
	Refused bool `json:"refused,omitempty"`
}

// BMCLogEntry is an entry of a BMC's log of its machine.
type BMCLogEntry struct {
	// At is when it was made, by the BMC's clock; absent when it does not say.
	// +optional
	At *metav1.Time `json:"at,omitempty"`
	// Severity is OK, Warning or Critical; absent when the BMC does not say.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Severity string `json:"severity,omitempty"`
	// Message is what happened, cut at 256 bytes.
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message"`
}

// PowerEvidence is what the BMC told when a person was asked.
type PowerEvidence struct {
	// CollectedAt is when.
	CollectedAt metav1.MicroTime `json:"collectedAt"`
	// Log is the newest entries of the BMC's log, newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Log []BMCLogEntry `json:"log,omitempty"`
	// Console tells whether the BMC keeps the serial console, which `stayput bmc console` shows. It is not kept here, since a
	// machine may print secrets of its own.
	// +optional
	Console bool `json:"console,omitempty"`
	// Missing says what could not be collected, and why.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Missing string `json:"missing,omitempty"`
}

// OutOfBandStatus is the part of the status that the BMC rung writes.
type OutOfBandStatus struct {
	// Attempt is the attempt that this part is about.
	Attempt string `json:"attempt"`
	// Phase is where the rung is.
	Phase OutOfBandPhase `json:"phase"`
	// Reason is why.
	Reason OutOfBandReason `json:"reason"`
	// Message says what was seen, and the next action when a person is needed.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// Power is the last power state that was read, and PowerReadAt when.
	// +optional
	Power PowerState `json:"power,omitempty"`
	// +optional
	PowerReadAt *metav1.MicroTime `json:"powerReadAt,omitempty"`
	// Resets is how many resets this attempt has used.
	Resets int32 `json:"resets"`
	// Intent is the newest power action.
	// +optional
	Intent *PowerIntent `json:"intent,omitempty"`
	// History is the changes of the power that were seen in this attempt, and the actions, oldest first; the newest 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	History []PowerEvent `json:"history,omitempty"`
	// BootOverride says what came of asking the firmware to boot from disk, which is tried once in an attempt.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	BootOverride string `json:"bootOverride,omitempty"`
	// Evidence is collected when a person is asked.
	// +optional
	Evidence *PowerEvidence `json:"evidence,omitempty"`
	// Deadline is when the rung acts next if the machine stays silent.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
}
