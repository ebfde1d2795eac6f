package redfish

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

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
	root      serviceRoot
	// sessions is where sessions are made, session the path of ours; "" when there is none.
	sessions, session string
	// path is the system's.
	path string
	// actionInfo are the ResetTypes that were read in an ActionInfo resource, by its path, in this session: a BMC that
	// started anew may have another firmware.
	actionInfo map[string][]string
	// wait pauses between two looks at the BMC.
	wait func(ctx context.Context, pause time.Duration) error

	// redactor takes out the credentials, and the token redactedToken.
	redactor      *bmc.Redactor
	redactedToken string

	// mu lets one call at a time use the transport.
	mu     sync.Mutex
	closed bool
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
		options: options, wait: sleep,
		transport: &transport{base: base, requestTimeout: options.RequestTimeout, credentials: options.Credentials},
	}
	if err := m.open(ctx); err != nil {
		// The session, if there is one, must not be left to the BMC's idle timeout: it has few.
		_ = m.Close(ctx)

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
	if _, err := m.get("reading the service root", common.DefaultServiceRoot, &m.root); err != nil {
		return err
	}
	m.sessions = m.root.Links.Sessions.String()
	if err := m.login(); err != nil {
		return err
	}
	if m.path, err = m.findSystem(); err != nil {
		return err
	}

	return m.checkIdentity()
}

// begin makes ctx the context of the requests to come.
func (m *machine) begin(ctx context.Context) (end func()) {
	m.transport.current = &call{ctx: ctx}

	return func() { m.transport.current = nil }
}

// enter begins a call of a Machine, and gives what ends it.
func (m *machine) enter(ctx context.Context, op string) (leave func(), err error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()

		return nil, &bmc.Error{
			Kind: bmc.Transient, Op: op, BMC: m.options.Address.HostPort(), Detail: "the connection was closed; open a new one",
		}
	}
	end := m.begin(ctx)

	return func() {
		end()
		m.mu.Unlock()
	}, nil
}

// defaultSystems and defaultManagers are where they are when the service root does not say.
const (
	defaultSystems  = "/redfish/v1/Systems"
	defaultManagers = "/redfish/v1/Managers"
)

type serviceRoot struct {
	RedfishVersion, Vendor, Product string

	Systems, Managers common.Link
	Links             struct{ Sessions common.Link }
}

// system is what is read of a ComputerSystem.
type system struct {
	ODataID                                             string `json:"@odata.id"`
	UUID, SerialNumber, Model, Manufacturer, PowerState string
	Boot                                                bootProperties
	VirtualMedia, LogServices                           common.Link
	Links                                               struct{ ManagedBy common.Links }
	Settings                                            struct{ SettingsObject common.Link } `json:"@Redfish.Settings"`
	Actions                                             struct {
		Reset resetAction `json:"#ComputerSystem.Reset"`
	}

	etag string
}

// findSystem gives the path of the system that the address means.
func (m *machine) findSystem() (string, error) {
	if m.options.Address.SystemPath != "" {
		return m.options.Address.SystemPath, nil
	}
	const op = "looking for the system"
	collection := m.root.Systems.String()
	if collection == "" {
		collection = defaultSystems
	}
	switch members, err := m.members(op, collection); {
	case err != nil:
		return "", err
	case len(members) == 1:
		return members[0], nil
	case len(members) == 0:
		return "", m.fail(bmc.NotFound, op, "the BMC lists no system; is it still starting?")
	default:
		return "", m.fail(bmc.Ambiguous, op,
			"the BMC has several systems; put the path of one into spec.bmc.address: "+strings.Join(members, ", "))
	}
}

func (m *machine) checkIdentity() error {
	now, err := m.readSystem()
	if err != nil {
		return err
	}

	return m.isExpected(now)
}

// isExpected refuses another machine than the expected one, also when it took the place of that one since the BMC was
// opened.
func (m *machine) isExpected(now system) error {
	if !bmc.SameUUID(m.options.UUID, now.UUID) {
		return m.fail(bmc.Mismatch, "checking the machine", fmt.Sprintf(
			"system %s has UUID %s, but the expected machine has %s; correct spec.bmc.address, "+
				"or the link between host and Node", m.path, strings.ToLower(now.UUID), m.options.UUID))
	}

	return nil
}

func (m *machine) readSystem() (system, error) {
	var now system
	got, err := m.get("reading system "+m.path, m.path, &now)
	if err != nil {
		return system{}, err
	}
	now.etag = got.header.Get("ETag")
	if now.ODataID == "" {
		now.ODataID = m.path
	}

	return now, nil
}

// Identity implements bmc.Machine.
func (m *machine) Identity(ctx context.Context) (bmc.Identity, error) {
	leave, err := m.enter(ctx, "reading the identity")
	if err != nil {
		return bmc.Identity{}, err
	}
	defer leave()
	now, err := m.readSystem()
	if err != nil {
		return bmc.Identity{}, err
	}
	// What tells one machine from another is the system's. A manager that cannot be read must not hide it.
	managed, err := m.readManager(now)
	if err != nil {
		managed.FirmwareVersion = ""
	}

	return bmc.Identity{
		UUID: bmc.OneLine(strings.ToLower(now.UUID)), Serial: bmc.OneLine(now.SerialNumber), Model: bmc.OneLine(now.Model),
		Manufacturer: bmc.OneLine(now.Manufacturer), BMCFirmware: bmc.OneLine(managed.FirmwareVersion),
	}, nil
}

// Power implements bmc.Machine.
func (m *machine) Power(ctx context.Context) (bmc.Power, error) {
	leave, err := m.enter(ctx, "reading the power state")
	if err != nil {
		return bmc.PowerUnknown, err
	}
	defer leave()
	now, err := m.readSystem()
	if err != nil {
		return bmc.PowerUnknown, err
	}
	switch schemas.PowerState(now.PowerState) {
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
