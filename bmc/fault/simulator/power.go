package simulator

import (
	"net/http"
	"slices"
	"time"
)

// reset answers the action ComputerSystem.Reset.
func (b *BMC) reset(r *http.Request, s *system) *answer {
	rules := b.profile.Reset
	if rules.Absent || s.board {
		return b.missing()
	}
	body, _ := decode(r)
	kind, _ := body["ResetType"].(string)
	act := b.record(s, kind)
	now := b.clock.Now()
	if refused := b.refuseReset(r, s, kind, now); refused != nil {
		return refused
	}
	fails := rules.Task.Fails && rules.Status == http.StatusAccepted
	if !rules.Ignore && !fails && (!rules.IgnoreInTransition || len(s.pending) == 0) {
		act.Applied = s.follow(rules, kind, now)
	}
	if rules.Status == http.StatusAccepted {
		return b.newTask(rules.Task)
	}
	if rules.Status == http.StatusOK {
		return &answer{status: http.StatusOK, body: object{"error": object{
			"code": b.profile.Prefix + "Success", "message": "Success",
			"@Message.ExtendedInfo": []any{object{"MessageId": "Base.1.12.Success"}},
		}}}
	}

	return done(rules.Status)
}

// refuseReset is nil for a request that is accepted.
func (b *BMC) refuseReset(r *http.Request, s *system, kind string, now time.Time) *answer {
	rules := b.profile.Reset
	switch {
	case kind == "":
		return b.refuse(http.StatusBadRequest, "Base.1.12.ActionParameterMissing", "ResetType is missing.")
	case rules.NoIfMatch && r.Header.Get("If-Match") != "":
		return b.refuse(http.StatusPreconditionFailed, "Base.1.12.PreconditionFailed", "The ETag does not match.")
	case !slices.Contains(rules.Types, kind):
		return b.refuse(http.StatusBadRequest, "Base.1.12.ActionParameterValueNotInList",
			"The value "+kind+" of ResetType is not in the list of acceptable values.")
	case slices.Contains(rules.Unwired, kind):
		return b.refuse(http.StatusInternalServerError, "Base.1.12.InternalError", "The request failed due to an internal error.")
	case !s.bootAt.IsZero() && now.Sub(s.bootAt) < rules.PostBusy:
		return b.refuse(rules.BusyStatus, b.profile.Prefix+rules.BusyMessage, "The operation is not allowed in the present system state.")
	case kind == "On" && s.Power == powerOff && !s.offAt.IsZero() && now.Sub(s.offAt) < rules.OnConflict:
		return b.refuse(http.StatusConflict, "Base.1.12.ActionParameterValueConflict",
			"The parameter ResetType conflicts with the present state of the server.")
	case rules.Already != 0 && s.isAlready(kind):
		return b.refuse(rules.Already, rules.AlreadyMessage, "The server is in the requested power state already.")
	default:
		return nil
	}
}

// isAlready tells whether a request asks for the power that is, or for a restart of a machine that is off.
func (s *system) isAlready(kind string) bool {
	switch kind {
	case "On", "ForceOn":
		return s.Power == powerOn
	case "PushPowerButton", "Nmi":
		return false
	default:
		return s.Power == powerOff
	}
}

// never is later than any test.
const never = 100 * 365 * 24 * time.Hour

// follow plans what a request does, and tells whether that is anything. A request in place of another that is not yet
// true is lost when it asks for the power that still is, as with sushy-tools' fake driver.
func (s *system) follow(rules ResetRules, kind string, now time.Time) bool {
	at := now.Add(rules.Latency)
	if rules.Stuck {
		at = now.Add(never)
	}
	isOn := s.Power == powerOn
	off, on := change{at: at, to: powerOff}, change{at: at, to: powerOn, boot: true}
	switch {
	case kind == "ForceRestart" || kind == "PowerCycle":
		return s.restart(rules, kind, off, on)
	case kind == "GracefulRestart":
		return s.plan(!rules.DeafOS || !isOn, on)
	case kind == "GracefulShutdown":
		// The operating system takes its time.
		off.at = at.Add(rules.Latency)

		return s.plan(isOn && !rules.DeafOS, off)
	case kind == "ForceOff":
		return s.plan(isOn, off)
	case kind == "PushPowerButton" && isOn:
		return s.plan(!rules.DeafOS, off)
	case kind == "Nmi":
		return false
	default: // On, ForceOn, and the button of a machine that is off
		return s.plan(!isOn, on)
	}
}

// restart plans a hard restart.
func (s *system) restart(rules ResetRules, kind string, off, on change) bool {
	switch {
	case rules.RestartStaysOff:
		return s.plan(s.Power == powerOn, off)
	case kind == "PowerCycle" && s.Power == powerOn:
		on.at = on.at.Add(rules.Latency)

		return s.plan(true, off, on)
	default:
		return s.plan(true, on)
	}
}

// plan replaces what was under way.
func (s *system) plan(follows bool, changes ...change) bool {
	if follows {
		s.pending = changes
	}

	return follows
}

// task is what an action with answer 202 made.
type task struct {
	rules TaskRules
	ends  time.Time
}

func (b *BMC) newTask(rules TaskRules) *answer {
	b.serial++
	id := tasksPath + "/" + itoa(b.serial)
	if !rules.Vanishes {
		b.tasks[id] = &task{rules: rules, ends: b.clock.Now().Add(rules.Runs)}
	}

	return &answer{
		status: http.StatusAccepted, header: map[string]string{"Location": id},
		body: object{"@odata.id": id, "Id": itoa(b.serial), "Name": "Reset", "TaskState": "Running"},
	}
}

func (b *BMC) taskArea(r *http.Request, _ []string) *answer {
	known := b.tasks[r.URL.Path]
	switch {
	case known == nil:
		return b.missing()
	case r.Method != http.MethodGet:
		return b.notAllowed()
	}
	body := object{"@odata.id": r.URL.Path, "Name": "Reset", "TaskState": "Running", "TaskStatus": "OK"}
	switch {
	case known.rules.Stuck || b.clock.Now().Before(known.ends):
		return &answer{status: http.StatusAccepted, header: map[string]string{"Retry-After": "1", "Location": r.URL.Path}, body: body}
	case known.rules.Fails:
		body["TaskState"], body["TaskStatus"] = "Exception", "Critical"
		body["Messages"] = []any{object{"MessageId": b.profile.Prefix + "InternalError", "Message": "The task failed."}}
	default:
		body["TaskState"] = "Completed"
	}

	return show(body)
}
