package bmc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/common"
	"github.com/stmcginnis/gofish/redfish"
)

// Credentials of a BMC account. White space around both must already be trimmed, as baremetal-operator does.
type Credentials struct {
	Username, Password string
}

// String keeps the password out of logs.
func (c Credentials) String() string { return c.Username + ":<redacted>" }

// GoString keeps the password out of logs.
func (c Credentials) GoString() string { return c.String() }

// Options say how to reach a machine.
type Options struct {
	// Address is where it is.
	Address Address
	// Credentials of the BMC.
	Credentials Credentials
	// SkipVerify switches off the verification of the BMC's certificate. Default false.
	SkipVerify bool
	// CA is PEM certificates to verify the BMC with, in place of the system's.
	CA []byte
	// UUID is the SMBIOS UUID that the machine must have. Empty: not checked. A BMC that tells no UUID passes.
	UUID string
	// ConnectTimeout bounds connecting, and the TLS handshake. Default 10 s.
	ConnectTimeout time.Duration
	// RequestTimeout bounds one request with its answer. Default 60 s. A call may take several requests.
	RequestTimeout time.Duration
}

// machine is a Machine over Redfish.
type machine struct {
	options   Options
	client    *gofish.APIClient
	transport *transport
	system    string
	session   string

	// mu lets one call at a time use the transport.
	mu sync.Mutex
}

var _ Machine = (*machine)(nil)

// Open connects to a BMC, logs in, finds the system, and checks that it is the expected one. It sends no action. It
// blocks for some requests; ctx bounds it. Close the Machine in any case where err is nil.
func Open(ctx context.Context, options Options) (Machine, error) {
	if options.ConnectTimeout <= 0 {
		options.ConnectTimeout = defaultConnectTimeout
	}
	if options.RequestTimeout <= 0 {
		options.RequestTimeout = defaultRequestTimeout
	}
	if options.Credentials.Username == "" || options.Credentials.Password == "" {
		return nil, &Error{
			Kind: Auth, Op: "opening", BMC: options.Address.HostPort(),
			Detail: "user name or password is empty; set keys username and password of the credentials Secret",
		}
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
		Endpoint:   m.options.Address.endpoint(),
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
	token, err := redfish.CreateSession(
		m.client, sessions, m.options.Credentials.Username, m.options.Credentials.Password)
	if err != nil {
		failed := m.classify("logging in", false, err)
		if kind := KindOf(failed); kind == NotFound || kind == Unsupported {
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
		collection = strings.TrimRight(systemsPath, "/")
	}
	systems, err := common.GetCollection(m.client, collection)
	if err != nil {
		return "", m.classify(op, false, err)
	}
	switch members := systems.ItemLinks; {
	case len(members) == 1 && systems.MembersNextLink == "":
		return members[0], nil
	case len(members) == 0:
		return "", m.fail(NotFound, op, "the BMC lists no system; is it still starting?")
	default:
		return "", m.fail(Ambiguous, op,
			"the BMC has several systems; put the path of one into spec.bmc.address: "+strings.Join(members, ", "))
	}
}

func (m *machine) checkIdentity() error {
	system, err := m.readSystem()
	if err != nil {
		return err
	}
	if !SameUUID(m.options.UUID, system.UUID) {
		return m.fail(Mismatch, "checking the machine", fmt.Sprintf(
			"system %s has UUID %s, but the expected machine has %s; correct spec.bmc.address, "+
				"or the link between host and Node", m.system, strings.ToLower(system.UUID), m.options.UUID))
	}

	return nil
}

func (m *machine) readSystem() (*redfish.ComputerSystem, error) {
	system, err := redfish.GetComputerSystem(m.client, m.system)
	if err != nil {
		return nil, m.classify("reading system "+m.system, false, err)
	}

	return system, nil
}

// Identity implements Machine.
func (m *machine) Identity(ctx context.Context) (Identity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	system, err := m.readSystem()
	if err != nil {
		return Identity{}, err
	}

	return Identity{
		UUID: strings.ToLower(system.UUID), Serial: system.SerialNumber,
		Model: system.Model, Manufacturer: system.Manufacturer,
	}, nil
}

// Power implements Machine.
func (m *machine) Power(ctx context.Context) (Power, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.begin(ctx)()
	system, err := m.readSystem()
	if err != nil {
		return PowerUnknown, err
	}
	switch system.PowerState {
	case redfish.OnPowerState:
		return PowerOn, nil
	case redfish.OffPowerState:
		return PowerOff, nil
	case redfish.PoweringOnPowerState, redfish.PoweringOffPowerState:
		return PowerTransition, nil
	case redfish.PausedPowerState:
		return PowerUnknown, nil
	default:
		return PowerUnknown, nil
	}
}

// Actions implements Machine.
func (m *machine) Actions(ctx context.Context) ([]Action, error) {
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
	var offered []Action
	for _, action := range []Action{ActionOn, ActionForceOff, ActionForceRestart} {
		if _, ok := resetType(action, types); ok {
			offered = append(offered, action)
		}
	}

	return offered, nil
}

// Do implements Machine.
func (m *machine) Do(ctx context.Context, action Action) error {
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
		return m.fail(Unsupported, op, "the BMC offers only "+strings.Join(types, ", "))
	}
	if !m.hasResetTarget(system) {
		return m.fail(Unsupported, op, "the BMC offers no action #ComputerSystem.Reset; may this account change power?")
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
	if err := redfish.DeleteSession(m.client, session); err != nil {
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

func (m *machine) hasResetTarget(system *redfish.ComputerSystem) bool {
	var actions resetActions

	return json.Unmarshal(system.RawData, &actions) == nil && actions.Actions.Reset.Target != ""
}

// resetTypes lists the ResetTypes that the BMC allows, inline or in the ActionInfo resource (OpenBMC); empty when it
// does not say.
func (m *machine) resetTypes(system *redfish.ComputerSystem) ([]string, error) {
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
func resetType(action Action, allowed []string) (redfish.ResetType, bool) {
	candidates := map[Action][]redfish.ResetType{
		ActionOn:           {redfish.OnResetType, redfish.ForceOnResetType},
		ActionForceOff:     {redfish.ForceOffResetType},
		ActionForceRestart: {redfish.ForceRestartResetType},
	}[action]
	for _, candidate := range candidates {
		if len(allowed) == 0 || slices.Contains(allowed, string(candidate)) {
			return candidate, true
		}
	}

	return "", false
}
