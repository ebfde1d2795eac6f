package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	schemas "github.com/stmcginnis/gofish/redfish"

	"github.com/stayput-dev/stayput/bmc"
)

// resetAction is the action Reset of a system.
type resetAction struct {
	Target     string   `json:"target"`
	ActionInfo string   `json:"@Redfish.ActionInfo"`
	Allowed    []string `json:"ResetType@Redfish.AllowableValues"`
}

// allActions are the actions in the order in which they are listed.
func allActions() []bmc.Action {
	return []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart,
		bmc.ActionShutdown, bmc.ActionSoftRestart, bmc.ActionPowerCycle,
	}
}

// Actions implements bmc.Machine. A BMC that lists none is taken to offer all: it refuses what it does not know.
func (m *machine) Actions(ctx context.Context) ([]bmc.Action, error) {
	leave, err := m.enter(ctx, "reading the actions")
	if err != nil {
		return nil, err
	}
	defer leave()
	now, err := m.readSystem()
	if err != nil {
		return nil, err
	}

	return m.offeredActions(now)
}

func (m *machine) offeredActions(now system) ([]bmc.Action, error) {
	if now.Actions.Reset.Target == "" {
		return nil, nil
	}
	types, err := m.resetTypes(now.Actions.Reset)
	if err != nil {
		return nil, err
	}
	var offered []bmc.Action
	for _, action := range allActions() {
		if _, ok := resetType(action, types); ok {
			offered = append(offered, action)
		}
	}

	return offered, nil
}

// Do implements bmc.Machine.
func (m *machine) Do(ctx context.Context, action bmc.Action) error {
	op := fmt.Sprintf("sending %s to system %s", action, m.path)
	leave, err := m.enter(ctx, op)
	if err != nil {
		return err
	}
	defer leave()
	now, err := m.readSystem()
	if err != nil {
		return err
	}
	if err := m.isExpected(now); err != nil {
		return err
	}
	reset := now.Actions.Reset
	if reset.Target == "" {
		return m.fail(bmc.Unsupported, op, "the BMC offers no action #ComputerSystem.Reset; may this account change power?")
	}
	types, err := m.resetTypes(reset)
	if err != nil {
		return err
	}
	chosen, ok := resetType(action, types)
	if !ok {
		return m.fail(bmc.Unsupported, op, "the BMC offers only "+strings.Join(types, ", "))
	}
	// No If-Match: newer Dell BMCs answer 412 to one with an action (gofish pull request 510).
	err = m.act(request{
		op: op, method: http.MethodPost, uri: reset.Target, body: map[string]string{"ResetType": string(chosen)},
	})
	if err != nil {
		return answered(m.classify(op, true, err), err)
	}

	return nil
}

// answered marks an error as the BMC's refusal of the request itself, where it is one.
func answered(failed, cause error) error {
	ours, ok := errors.AsType[*bmc.Error](failed)
	if ok && statusOf(cause) != 0 && ours.Kind != bmc.Unknown {
		ours.Refused = true
	}

	return failed
}

// resetTypes lists the ResetTypes that the BMC allows, inline or in the ActionInfo resource (OpenBMC); empty when it
// does not say. That resource is read once: an operation asks for the types twice, and a BMC takes its time to answer.
func (m *machine) resetTypes(reset resetAction) ([]string, error) {
	if len(reset.Allowed) > 0 {
		return reset.Allowed, nil
	}
	if known, ok := m.actionInfo[reset.ActionInfo]; ok {
		return known, nil
	}
	var info struct {
		Parameters []struct {
			Name            string
			AllowableValues []string
		}
	}
	if _, err := m.getOptional("reading the action info of system "+m.path, reset.ActionInfo, &info); err != nil {
		return nil, err
	}
	var types []string
	for _, parameter := range info.Parameters {
		if parameter.Name == "ResetType" {
			types = append(types, parameter.AllowableValues...)
		}
	}
	if len(types) > 0 {
		m.actionInfo = map[string][]string{reset.ActionInfo: types}
	}

	return types, nil
}

// resetType is the ResetType for an action. When the BMC lists none it is tried. No action stands in for another: a
// restart that is asked to be soft never becomes hard.
func resetType(action bmc.Action, allowed []string) (schemas.ResetType, bool) {
	candidates := map[bmc.Action][]schemas.ResetType{
		bmc.ActionOn:           {schemas.OnResetType, schemas.ForceOnResetType},
		bmc.ActionForceOff:     {schemas.ForceOffResetType},
		bmc.ActionForceRestart: {schemas.ForceRestartResetType},
		bmc.ActionShutdown:     {schemas.GracefulShutdownResetType},
		bmc.ActionSoftRestart:  {schemas.GracefulRestartResetType},
		bmc.ActionPowerCycle:   {schemas.PowerCycleResetType},
	}[action]
	for _, candidate := range candidates {
		if len(allowed) == 0 || slices.Contains(allowed, string(candidate)) {
			return candidate, true
		}
	}

	return "", false
}
