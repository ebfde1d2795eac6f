package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	// defaultPoll is the pause between looks at a task when the BMC names none.
	defaultPoll = time.Second
	// maxPoll bounds the pause that a BMC may ask for.
	maxPoll = 30 * time.Second
	// maxTaskTime bounds the wait for a task when the caller's context does not: an insert fetches a whole image.
	maxTaskTime = 10 * time.Minute
	// pollTries is how many looks at a task may fail in a row.
	pollTries = 3
)

var errTaskTime = fmt.Errorf("it takes longer than %s", maxTaskTime)

// task is what a monitor tells: a Task, or a Job (Dell).
type task struct {
	ODataID     string        `json:"@odata.id"`
	TaskMonitor string        `json:"TaskMonitor"`
	TaskState   string        `json:"TaskState"`
	JobState    string        `json:"JobState"`
	Messages    []taskMessage `json:"Messages"`
}

type taskMessage struct {
	MessageID string `json:"MessageId"`
	Message   string `json:"Message"`
}

// follow waits for the task of an accepted request, within the caller's context. nil means that the task ended well or
// that its monitor is gone, as iLOs do with finished ones; what came of it must be observed in both cases.
func (m *machine) follow(op string, accepted answer) error {
	monitor := monitorOf(accepted)
	if monitor == "" {
		return nil
	}
	ctx, began := m.transport.current.ctx, time.Now()
	pause, failures := pauseOf(accepted.header), 0
	for waited := pause; ; waited += pause {
		if max(waited, time.Since(began)) > maxTaskTime {
			return m.unfinished(op, monitor, errTaskTime)
		}
		if err := m.wait(ctx, pause); err != nil {
			return m.unfinished(op, monitor, err)
		}
		got, err := m.send(request{op: op, method: http.MethodGet, uri: monitor})
		switch status := statusOf(err); {
		case err == nil:
			ended, err := m.readTask(op, got)
			if ended {
				return err
			}
			pause, failures = pauseOf(got.header), 0
		case status == http.StatusNotFound, status == http.StatusGone:
			return nil
		case ctx.Err() != nil:
			return m.unfinished(op, monitor, ctx.Err())
		case isFinal(status):
			// The monitor gives the answer of the request itself in the end.
			return answered(m.classify(op, true, err), err)
		default:
			if failures++; failures == pollTries {
				return m.unfinished(op, monitor, m.classify(op, false, err))
			}
			pause = max(defaultPoll, min(m.transport.current.retryAfter, maxPoll))
		}
	}
}

// isFinal tells an answer that is the request's own from one that says that the monitor cannot be read now.
func isFinal(status int) bool {
	return status >= http.StatusBadRequest && status < http.StatusInternalServerError &&
		status != http.StatusUnauthorized && status != http.StatusForbidden && status != http.StatusTooManyRequests
}

// monitorOf finds the task of an accepted request: the header's, or the Task that is the body.
func monitorOf(accepted answer) string {
	if location := accepted.header.Get("Location"); location != "" {
		return location
	}
	var body task
	if decode(accepted.body, &body) != nil {
		return ""
	}
	if body.TaskMonitor != "" {
		return body.TaskMonitor
	}

	return body.ODataID
}

func pauseOf(header http.Header) time.Duration {
	if pause := parseRetryAfter(header.Get("Retry-After"), time.Now()); pause > 0 {
		return min(pause, maxPoll)
	}

	return defaultPoll
}

// readTask tells whether the task has ended, and how. A monitor answers 202 while it runs; a Task answers 200 always.
func (m *machine) readTask(op string, got answer) (ended bool, err error) {
	if got.status == http.StatusAccepted {
		return false, nil
	}
	var now task
	// What is no Task is the answer of the request itself, such as 204.
	_ = decode(got.body, &now)
	switch state := now.TaskState + now.JobState; state {
	case "New", "Starting", "Running", "Stopping", "Cancelling", "Suspended", "Service",
		"Scheduling", "Downloading", "Downloaded", "Waiting":
		return false, nil
	case "Exception", "Killed", "Cancelled", "Interrupted", "Failed", "CompletedWithErrors", "UserIntervention":
		return true, m.taskFailed(op, state, now.Messages)
	default:
		// Completed; or Pending and Scheduled: a Dell waits with it for the next boot, which is the caller's to cause.
		return true, nil
	}
}

// taskFailed is the error of a task that did not end well. It may have acted before it failed, unless it says that the
// machine's state forbade it.
func (m *machine) taskFailed(op, state string, messages []taskMessage) error {
	said := make([]string, 0, len(messages))
	answered := &common.Error{}
	for _, message := range messages {
		answered.ExtendedInfos = append(answered.ExtendedInfos, common.ErrExtendedInfo{MessageID: message.MessageID})
		if message.Message != "" {
			said = append(said, message.Message)
		}
	}
	kind := bmc.Unknown
	switch {
	case isNotReady(answered):
		kind = bmc.Busy
	case hasMessage(answered, "ActionParameterValueConflict", "ResourceCannotBeDeleted", "PropertyValueConflict"):
		kind = bmc.Conflict
	case isNotSupported(answered):
		kind = bmc.Unsupported
	}
	detail := "the BMC accepted it and its task ended as " + state
	if text := m.line(strings.Join(said, " "), maxDetail); text != "" {
		detail += ": " + text
	}

	failed := m.fail(kind, op, detail)
	if ours, ok := errors.AsType[*bmc.Error](failed); ok {
		ours.Refused = kind != bmc.Unknown
	}

	return failed
}

// unfinished is the error of a task whose end was not seen.
func (m *machine) unfinished(op, monitor string, cause error) error {
	failed := &bmc.Error{
		Kind: bmc.Unknown, Op: m.line(op, 0), BMC: m.options.Address.HostPort(),
		Detail: m.line(fmt.Sprintf("the BMC accepted it, and its task %s has not ended: %v; look at what the machine does",
			monitor, cause), 0),
	}
	failed.Err = fixedCause(cause)

	return failed
}

// sleep waits, or gives the context's error.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
