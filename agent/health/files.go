package health

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/agent/durable"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// The files, in the agent's state directory.
const (
	TrialFile  = "trial.json"
	RecordFile = "gate.json"
)

// Trial is what the agent leaves for the boot gate before it reboots.
type Trial struct {
	// Attempt is the attempt's ID.
	Attempt string `json:"attempt"`
	// Version and RootHash are those of the image that is armed.
	Version  string `json:"version"`
	RootHash string `json:"rootHash"`
	// BootIDBefore is the kernel's boot ID before the reboot.
	BootIDBefore string `json:"bootIDBefore"`
	// Health holds the deadlines; those that are zero have the API's defaults.
	Health v1alpha1.HealthSettings `json:"health"`
}

// Verdict is what the boot gate says of a boot.
type Verdict string

// The verdicts.
const (
	// VerdictRunning: the gate began and has not ended; once that boot is over, it was interrupted.
	VerdictRunning Verdict = "running"
	// VerdictPassed: every gate passed.
	VerdictPassed Verdict = "passed"
	// VerdictFailed: a gate passed its deadline; the slot is marked bad and the machine rebooted.
	VerdictFailed Verdict = "failed"
)

// Record is what the boot gate leaves for the agent.
type Record struct {
	// BootID is the boot that it is about.
	BootID string `json:"bootID"`
	// Attempt and Version are the trial's, "" when the trial was lost.
	Attempt string `json:"attempt,omitempty"`
	Version string `json:"version,omitempty"`
	// Verdict is how it stands.
	Verdict Verdict `json:"verdict"`
	// Message says which gate failed and how, or why a step after the failure did not work.
	Message string `json:"message,omitempty"`
	// StartedAt and EndedAt are by this machine's clock, for people.
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
	// Gates are the gates, in a fixed order.
	Gates []GateRecord `json:"gates"`
}

// GateRecord is one gate's result.
type GateRecord struct {
	Name    GateName `json:"name"`
	Verdict Verdict  `json:"verdict"`
	// LastError is what the last look found wrong.
	LastError string `json:"lastError,omitempty"`
	// Took is how long the gate took to pass or fail.
	Took metav1.Duration `json:"took,omitzero"`
}

// SaveTrial stores the trial so that it survives a power cut.
func SaveTrial(stateDir string, trial Trial) error { return save(stateDir, TrialFile, trial) }

// ReadTrial reads the trial. The error wraps fs.ErrNotExist when there is none.
func ReadTrial(stateDir string) (Trial, error) {
	var trial Trial

	return trial, read(stateDir, TrialFile, &trial)
}

// RemoveTrial removes the trial. When there is none, that is fine.
func RemoveTrial(stateDir string) error {
	return durable.Remove(filepath.Join(stateDir, TrialFile))
}

// SaveRecord stores the record so that it survives a power cut.
func SaveRecord(stateDir string, record Record) error { return save(stateDir, RecordFile, record) }

// ReadRecord reads the record. The error wraps fs.ErrNotExist when there is none.
func ReadRecord(stateDir string) (Record, error) {
	var record Record

	return record, read(stateDir, RecordFile, &record)
}

func save(dir, name string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}

	return durable.WriteFile(filepath.Join(dir, name), append(content, '\n'))
}

func read(dir, name string, value any) error {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}

	if err := json.Unmarshal(content, value); err != nil {
		return fmt.Errorf("decoding %s: %w", name, err)
	}

	return nil
}
