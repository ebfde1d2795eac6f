package controlplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"
)

// Reads are left out: only who wrote what is asked for.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
`

// ErrNoAudit means that the cluster was started without Options.Audit.
var ErrNoAudit = errors.New("the cluster keeps no audit log")

// Write is one request that may have changed something.
type Write struct {
	// At is when the API server answered.
	At time.Time
	// User is who asked, Verb what: create, update, patch, delete, deletecollection.
	User, Verb string
	// Resource, Subresource, Namespace and Name are the object's.
	Resource, Subresource, Namespace, Name string
	// Code is the HTTP status of the answer.
	Code int
}

// auditEvent is the part of an audit.k8s.io/v1 Event that is used here.
type auditEvent struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	StageTimestamp time.Time `json:"stageTimestamp"`
}

// maxAuditLine bounds one event; at level Metadata they are about 1 KiB.
const maxAuditLine = 1 << 20

// Writes are the writes since then that match, oldest first; match nil means all. Needs Options.Audit.
func (c *Cluster) Writes(since time.Time, match func(Write) bool) ([]Write, error) {
	if !c.state.Audit {
		return nil, ErrNoAudit
	}

	file, err := os.Open(c.auditLogFile())
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	defer file.Close()

	var writes []Write

	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxAuditLine)

	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // the last line, while it is being written
		}

		write := Write{
			At: event.StageTimestamp, User: event.User.Username, Verb: event.Verb,
			Resource: event.ObjectRef.Resource, Subresource: event.ObjectRef.Subresource,
			Namespace: event.ObjectRef.Namespace, Name: event.ObjectRef.Name, Code: event.ResponseStatus.Code,
		}
		if !write.At.Before(since) && (match == nil || match(write)) {
			writes = append(writes, write)
		}
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}

	slices.SortStableFunc(writes, func(a, b Write) int { return a.At.Compare(b.At) })

	return writes, nil
}

func (c *Cluster) auditPolicyFile() string { return filepath.Join(c.dir, "audit-policy.yaml") }

func (c *Cluster) auditLogFile() string { return filepath.Join(c.dir, "audit.log") }

func (c *Cluster) writeAuditPolicy() error {
	if err := renameio.WriteFile(c.auditPolicyFile(), []byte(auditPolicy), fileMode); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}

	return nil
}
