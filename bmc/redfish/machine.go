package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	schemas "github.com/stmcginnis/gofish/redfish"

	"github.com/stayput-dev/stayput/bmc"
)

// machine is a Machine over Redfish.
type machine struct {
	options   bmc.Options
	client    *gofish.APIClient
	transport *transport
	system    string
	session   string

	// mu lets one call at a time use the transport.
	mu sync.Mutex
}

var _ bmc.Machine = (*machine)(nil)

// Open connects to a BMC, logs in, finds the system, and checks that it is the expected one. It sends no action. It
// blocks for some requests; ctx bounds it. Close the Machine in any case where err is nil.
func Open(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
	options = options.WithDefaults()
	if err := options.Check(); err != nil {
		return nil, err
	}
	base, err := newBase(options)
	if err != nil {
		return nil, err
	}
	m := &machine{
		options:   options,
		transport: &transport{base: base, requestTimeout: options.RequestTimeout, credentials: options.Credentials},
	}
	if err := m.open(ctx); err != nil {
		// The session, if there is one, must not be left to the BMC's idle timeout: it has few.
		_ = m.Close(context.WithoutCancel(ctx))

		return nil, err
	}

	return m, nil
}

func (m *machine) open(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	// gofish keeps the context of the connect for all later requests; the transport replaces it by each call's.
	client, err := gofish.ConnectContext(context.WithoutCancel(ctx), gofish.ClientConfig{
		Endpoint:   m.options.Address.Endpoint(),
		HTTPClient: &http.Client{Transport: m.transport, CheckRedirect: checkRedirect},
	})
	if err != nil {
		return m.classify("connecting", false, err)
	}
	m.client = client
	root, err := m.readRoot()
	if err != nil {
		return err
	}
	if err := m.login(root.Links.Sessions.String()); err != nil {
		return err
	}
	if m.system, err = m.findSystem(root.Systems.String()); err != nil {
		return err
	}

	return m.checkIdentity()
}

// begin makes ctx the context of the requests to come.
func (m *machine) begin(ctx context.Context) (end func()) {
	m.transport.current = &call{ctx: ctx}

	return func() { m.transport.current = nil }
}

// defaultSystems is where the systems are when the service root does not say.
const defaultSystems = "/redfish/v1/Systems"

type serviceRoot struct {
	Systems common.Link
	Links   struct{ Sessions common.Link }
}

func (m *machine) readRoot() (serviceRoot, error) {
	var root serviceRoot
	err := m.get("reading the service root", common.DefaultServiceRoot, &root)

	return root, err
}

// get reads a resource that gofish has no type for, or whose type hides what is needed.
func (m *machine) get(op, uri string, into any) error {
	response, err := m.client.Get(uri)
	if err != nil {
		return m.classify(op, false, err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return m.classify(op, false, err)
	}

	return nil
}

// login opens a session where the BMC offers them, and falls back to Basic authentication where that does not work.
// After refused credentials it does not try the same ones in another way: BMCs lock accounts.
func (m *machine) login(sessions string) error {
	if sessions == "" {
		m.transport.authenticate = true

		return nil
	}
	token, err := schemas.CreateSession(
		m.client, sessions, m.options.Credentials.Username, m.options.Credentials.Password)
	if err != nil {
		failed := m.classify("logging in", false, err)
		if kind := bmc.KindOf(failed); kind == bmc.NotFound || kind == bmc.Unsupported {
			m.transport.authenticate = true

			return nil
		}

		return failed
	}
	m.session = token.Session
	m.transport.token = token.Token
	m.transport.authenticate = true

	return nil
}

// findSystem gives the path of the system that the address means.
func (m *machine) findSystem(collection string) (string, error) {
	if m.options.Address.SystemPath != "" {
		return m.options.Address.SystemPath, nil
	}
	const op = "looking for the system"
	if collection == "" {
		collection = defaultSystems
	}
	systems, err := common.GetCollection(m.client, collection)
	if err != nil {
		return "", m.classify(op, false, err)
	}
	switch members := systems.ItemLinks; {
	case len(members) == 1 && systems.MembersNextLink == "":
		return members[0], nil
	case len(members) == 0:
		return "", m.fail(bmc.NotFound, op, "the BMC lists no system; is it still starting?")
	default:
		return "", m.fail(bmc.Ambiguous, op,
			"the BMC has several systems; put the path of one into spec.bmc.address: "+strings.Join(members, ", "))
	}
}

func (m *machine) checkIdentity() error {
	system, err := m.readSystem()
	if err != nil {
		return err
	}
	if !bmc.SameUUID(m.options.UUID, system.UUID) {
		return m.fail(bmc.Mismatch, "checking the machine", fmt.Sprintf(
			"system %s has UUID %s, but the expected machine has %s; correct spec.bmc.address, "+
				"or the link between host and Node", m.system, strings.ToLower(system.UUID), m.options.UUID))
	}

	return nil
}

func (m *machine) readSystem() (*schemas.ComputerSystem, error) {
	system, err := schemas.GetComputerSystem(m.client, m.system)
	if err != nil {
		return nil, m.classify("reading system "+m.system, false, err)
	}

	return system, nil
}

// Identity implements Machine.
func (m *machine) Identity(ctx context.Context) (bmc.Identity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	system, err := m.readSystem()
	if err != nil {
		return bmc.Identity{}, err
	}

	return bmc.Identity{
		UUID: strings.ToLower(system.UUID), Serial: system.SerialNumber,
		Model: system.Model, Manufacturer: system.Manufacturer,
	}, nil
}

// Power implements Machine.
func (m *machine) Power(ctx context.Context) (bmc.Power, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	system, err := m.readSystem()
	if err != nil {
		return bmc.PowerUnknown, err
	}
	switch system.PowerState {
	case schemas.OnPowerState:
		return bmc.PowerOn, nil
	case schemas.OffPowerState:
		return bmc.PowerOff, nil
	case schemas.PoweringOnPowerState, schemas.PoweringOffPowerState:
		return bmc.PowerTransition, nil
	case schemas.PausedPowerState:
		return bmc.PowerUnknown, nil
	default:
		return bmc.PowerUnknown, nil
	}
}

// Actions implements Machine.
func (m *machine) Actions(ctx context.Context) ([]bmc.Action, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	system, err := m.readSystem()
	if err != nil {
		return nil, err
	}
	types, err := m.resetTypes(system)
	if err != nil {
		return nil, err
	}
	var offered []bmc.Action
	for _, action := range []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart} {
		if _, ok := resetType(action, types); ok {
			offered = append(offered, action)
		}
	}

	return offered, nil
}

// Do implements Machine.
func (m *machine) Do(ctx context.Context, action bmc.Action) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	system, err := m.readSystem()
	if err != nil {
		return err
	}
	types, err := m.resetTypes(system)
	if err != nil {
		return err
	}
	op := fmt.Sprintf("sending %s to system %s", action, m.system)
	chosen, ok := resetType(action, types)
	if !ok {
		return m.fail(bmc.Unsupported, op, "the BMC offers only "+strings.Join(types, ", "))
	}
	if !m.hasResetTarget(system) {
		return m.fail(bmc.Unsupported, op, "the BMC offers no action #ComputerSystem.Reset; may this account change power?")
	}
	// gofish checks the type against the inline list only; that check was made above.
	system.SupportedResetTypes = nil
	if err := system.Reset(chosen); err != nil {
		return m.classify(op, true, err)
	}

	return nil
}

// Close implements Machine. It is safe to call twice.
func (m *machine) Close(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == "" {
		return nil
	}
	defer m.begin(ctx)()
	session := m.session
	m.session = ""
	if err := schemas.DeleteSession(m.client, session); err != nil {
		return m.classify("logging out", false, err)
	}

	return nil
}

// resetActions is what gofish does not tell of the action Reset.
type resetActions struct {
	Actions struct {
		Reset struct {
			Target     string `json:"target"`
			ActionInfo string `json:"@Redfish.ActionInfo"`
		} `json:"#ComputerSystem.Reset"`
	} `json:"Actions"`
}

func (m *machine) hasResetTarget(system *schemas.ComputerSystem) bool {
	var actions resetActions

	return json.Unmarshal(system.RawData, &actions) == nil && actions.Actions.Reset.Target != ""
}

// resetTypes lists the ResetTypes that the BMC allows, inline or in the ActionInfo resource (OpenBMC); empty when it
// does not say.
func (m *machine) resetTypes(system *schemas.ComputerSystem) ([]string, error) {
	types := make([]string, 0, len(system.SupportedResetTypes))
	for _, each := range system.SupportedResetTypes {
		types = append(types, string(each))
	}
	var actions resetActions
	if err := json.Unmarshal(system.RawData, &actions); err != nil {
		return nil, m.classify("reading the actions of system "+m.system, false, err)
	}
	if len(types) > 0 || actions.Actions.Reset.ActionInfo == "" {
		return types, nil
	}
	var info struct {
		Parameters []struct {
			Name            string   `json:"Name"`
			AllowableValues []string `json:"AllowableValues"`
		} `json:"Parameters"`
	}
	if err := m.get("reading the action info of system "+m.system, actions.Actions.Reset.ActionInfo, &info); err != nil {
		return nil, err
	}
	for _, parameter := range info.Parameters {
		if parameter.Name == "ResetType" {
			types = append(types, parameter.AllowableValues...)
		}
	}

	return types, nil
}

// resetType is the ResetType for an action. When the BMC lists none it is tried.
func resetType(action bmc.Action, allowed []string) (schemas.ResetType, bool) {
	candidates := map[bmc.Action][]schemas.ResetType{
		bmc.ActionOn:           {schemas.OnResetType, schemas.ForceOnResetType},
		bmc.ActionForceOff:     {schemas.ForceOffResetType},
		bmc.ActionForceRestart: {schemas.ForceRestartResetType},
	}[action]
	for _, candidate := range candidates {
		if len(allowed) == 0 || slices.Contains(allowed, string(candidate)) {
			return candidate, true
		}
	}

	return "", false
}
