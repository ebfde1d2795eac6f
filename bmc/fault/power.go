package fault

import (
	"net/http"
	"slices"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Faults of power.
const (
	// TaskStuck accepts power actions as tasks that never end, and follows them.
	TaskStuck Kind = "TaskStuck"
	// TaskFails accepts power actions as tasks that fail, and does not follow them.
	TaskFails Kind = "TaskFails"
	// TaskVanishes accepts power actions as tasks whose monitor is gone at once, and follows them (ironcore-dev/
	// metal-operator 668).
	TaskVanishes Kind = "TaskVanishes"
	// ActIgnored accepts power actions and does nothing.
	ActIgnored Kind = "ActIgnored"
	// StaleOn tells the old power state for 20 s after a change (infra-controller 4446).
	StaleOn Kind = "StaleOn"
	// StuckTransition tells PoweringOff, or PoweringOn, for ever.
	StuckTransition Kind = "StuckTransition"
	// SlowPower takes 45 s for each change of power, and tells what is under way.
	SlowPower Kind = "SlowPower"
	// PowerNull tells PowerState null.
	PowerNull Kind = "PowerNull"
	// PowerMissing leaves PowerState out.
	PowerMissing Kind = "PowerMissing"
	// OnConflict refuses On with 409 for 60 s after off (launchpad ironic 2162995).
	OnConflict Kind = "OnConflict"
	// PostBusy refuses power actions with 400 InvalidOperationForSystemState for 30 s after a start (sushy, rn
	// retry-ilo-not-ready).
	PostBusy Kind = "PostBusy"
	// Already400 refuses an action for the power that is with 400 (apache/cloudstack 12921).
	Already400 Kind = "Already400"
	// Already409 refuses it with 409 (sushy, rn catch-redfish-409).
	Already409 Kind = "Already409"
	// DeafOS accepts soft actions, and the operating system does not follow (metal-operator 129).
	DeafOS Kind = "DeafOS"
	// RestartStaysOff leaves the machine off after a restart or power cycle (infra-controller 5589).
	RestartStaysOff Kind = "RestartStaysOff"
	// IgnoredInTransition accepts power actions while the power changes, and ignores them (xcat-core 3966).
	IgnoredInTransition Kind = "IgnoredInTransition"
	// ForceOffUnwired offers ForceOff and refuses it with 500 (sonic-mgmt 27237).
	ForceOffUnwired Kind = "ForceOffUnwired"
	// NoForceRestart offers no ForceRestart (ibm-openbmc/bmcweb 157).
	NoForceRestart Kind = "NoForceRestart"
	// NoGracefulRestart offers no GracefulRestart (badfish 118).
	NoGracefulRestart Kind = "NoGracefulRestart"
	// TypesInActionInfo tells the reset types in the ActionInfo resource only (ibm-openbmc/bmcweb 522).
	TypesInActionInfo Kind = "TypesInActionInfo"
	// TypesNowhere does not tell the reset types.
	TypesNowhere Kind = "TypesNowhere"
	// NoResetAction leaves the action Reset out, as for accounts that may only read.
	NoResetAction Kind = "NoResetAction"
	// IfMatchOnAct refuses power actions that come with an If-Match (gofish pull request 510).
	IfMatchOnAct Kind = "IfMatchOnAct"
)

func powerFaults() []Fault {
	type rules = *simulator.ResetRules
	reset := func(change func(rules)) func(Target) error {
		return profile(func(p *simulator.Profile) { change(&p.Reset) })
	}
	tasks := func(rules simulator.TaskRules) func(Target) error {
		return reset(func(r *simulator.ResetRules) { r.Status, r.Task = http.StatusAccepted, rules })
	}
	without := func(kinds ...string) func(Target) error {
		return reset(func(r rules) {
			r.Types = slices.DeleteFunc(slices.Clone(r.Types), func(each string) bool { return slices.Contains(kinds, each) })
		})
	}
	already := func(status int) func(Target) error { return reset(func(r rules) { r.Already = status }) }

	return []Fault{
		{Kind: TaskStuck, Layer: Inside, inject: tasks(simulator.TaskRules{Stuck: true})},
		{Kind: TaskFails, Layer: Inside, inject: tasks(simulator.TaskRules{Runs: time.Second, Fails: true})},
		{Kind: TaskVanishes, Layer: Inside, inject: tasks(simulator.TaskRules{Vanishes: true})},
		{Kind: ActIgnored, Layer: Inside, inject: reset(func(r rules) { r.Ignore = true })},
		{Kind: StaleOn, Layer: Inside, inject: reset(func(r rules) { r.Stale, r.Transitions = 20*time.Second, false })},
		{Kind: StuckTransition, Layer: Inside, inject: reset(func(r rules) { r.Stuck, r.Transitions = true, true })},
		{Kind: SlowPower, Layer: Inside, inject: reset(func(r rules) { r.Latency, r.Transitions = 45*time.Second, true })},
		{Kind: PowerNull, Layer: Inside, inject: state(func(s *simulator.State) { s.NullPower = true })},
		{Kind: PowerMissing, Layer: Inside, inject: state(func(s *simulator.State) { s.NoPower = true })},
		{Kind: OnConflict, Layer: Inside, Quirk: 1, inject: reset(func(r rules) { r.OnConflict = time.Minute })},
		{Kind: PostBusy, Layer: Inside, Quirk: 3, inject: reset(func(r rules) { r.PostBusy = 30 * time.Second })},
		{Kind: Already400, Layer: Inside, Quirk: 36, inject: already(http.StatusBadRequest)},
		{Kind: Already409, Layer: Inside, inject: already(http.StatusConflict)},
		{Kind: DeafOS, Layer: Inside, Quirk: 35, inject: reset(func(r rules) { r.DeafOS = true })},
		{Kind: RestartStaysOff, Layer: Inside, Quirk: 37, inject: reset(func(r rules) { r.RestartStaysOff = true })},
		{Kind: IgnoredInTransition, Layer: Inside, Quirk: 40, inject: reset(func(r rules) { r.IgnoreInTransition = true })},
		{Kind: ForceOffUnwired, Layer: Inside, Quirk: 38, inject: reset(func(r rules) { r.Unwired = []string{"ForceOff"} })},
		{Kind: NoForceRestart, Layer: Inside, Quirk: 34, inject: without("ForceRestart")},
		{Kind: NoGracefulRestart, Layer: Inside, Quirk: 33, inject: without("GracefulRestart")},
		{Kind: TypesInActionInfo, Layer: Inside, Quirk: 34, inject: reset(func(r rules) { r.TypesAt = simulator.ActionInfo })},
		{Kind: TypesNowhere, Layer: Inside, inject: reset(func(r rules) { r.TypesAt = simulator.Nowhere })},
		{Kind: NoResetAction, Layer: Inside, inject: reset(func(r rules) { r.Absent = true })},
		{Kind: IfMatchOnAct, Layer: Inside, Quirk: 12, inject: reset(func(r rules) { r.NoIfMatch = true })},
	}
}
