package faultybmc

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
)

// Options describe a BMC.
type Options struct {
	// Username and Password of its account.
	Username, Password string
	// Sessions offers a SessionService; otherwise there is Basic authentication only.
	Sessions bool
	// Systems are the machines behind it.
	Systems []System
}

// System is one machine.
type System struct {
	// ID is the last element of its path.
	ID string
	// Name and UUID are what it says of itself.
	Name, UUID string
	// Power is its PowerState; "" is answered as null.
	Power string
	// ResetTypes are its AllowableValues; nil leaves them out.
	ResetTypes []string
	// ActionInfo puts ResetTypes into an ActionInfo resource instead of beside the action.
	ActionInfo bool
	// NoReset leaves the action out.
	NoReset bool
	// Ignore accepts actions without following them.
	Ignore bool
}

// Path is the system's @odata.id.
func (s System) Path() string { return "/redfish/v1/Systems/" + s.ID }

// Action is a reset that took effect.
type Action struct {
	System, ResetType string
}

// Fault changes the answer to some requests.
type Fault struct {
	// Method and Path select requests; Path is a suffix. Empty matches all.
	Method, Path string
	// Times is how many requests it changes; 0 means all.
	Times int
	// Status answers with this status, Header and Body, and does not act.
	Status int
	Header http.Header
	Body   string
	// ActFirst lets the request take effect before anything else is done.
	ActFirst bool
	// Drop closes the connection without an answer.
	Drop bool
	// Hang answers nothing until the client has gone.
	Hang bool
	// Truncate ends the true answer in its middle.
	Truncate bool
}

// BMC is a running BMC.
type BMC struct {
	server  *httptest.Server
	closing chan struct{}

	closeOnce sync.Once

	mu       sync.Mutex
	options  Options
	faults   []*Fault
	actions  []Action
	requests []string
	sessions map[string]string
	serial   int
	onAction func(Action)
}

// Start serves a BMC over TLS on a free loopback port. Close it.
func Start(options Options) *BMC {
	options.Systems = slices.Clone(options.Systems)
	b := &BMC{options: options, sessions: map[string]string{}, closing: make(chan struct{})}
	b.server = httptest.NewUnstartedServer(http.HandlerFunc(b.serve))
	b.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	b.server.StartTLS()

	return b
}

// Close ends the BMC; requests that hang are broken off. It is safe to call twice.
func (b *BMC) Close() {
	b.closeOnce.Do(func() { close(b.closing) })
	b.server.CloseClientConnections()
	b.server.Close()
}

// Host is the host and port.
func (b *BMC) Host() string { return b.server.Listener.Addr().String() }

// Address is the BareMetalHost address of a system.
func (b *BMC) Address(id string) string { return "redfish://" + b.Host() + System{ID: id}.Path() }

// CA is the certificate that verifies the BMC, in PEM.
func (b *BMC) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.server.Certificate().Raw})
}

// Inject adds a fault; the oldest that matches a request wins.
func (b *BMC) Inject(fault Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, &fault)
}

// Heal removes all faults.
func (b *BMC) Heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = nil
}

// OnAction calls f, outside any lock, after an action took effect and before it is answered.
func (b *BMC) OnAction(f func(Action)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onAction = f
}

// Change changes a system.
func (b *BMC) Change(id string, change func(*System)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if system := b.system(id); system != nil {
		change(system)
	}
}

// Actions are the resets that took effect, oldest first.
func (b *BMC) Actions() []Action {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.Clone(b.actions)
}

// Requests are "METHOD path" of all requests, oldest first.
func (b *BMC) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.Clone(b.requests)
}

// OpenSessions is how many sessions were not closed.
func (b *BMC) OpenSessions() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return len(b.sessions)
}

func (b *BMC) serve(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.requests = append(b.requests, r.Method+" "+r.URL.Path)
	fault := b.takeFault(r)
	b.mu.Unlock()
	if fault == nil {
		b.answer(w, r)

		return
	}
	if fault.ActFirst {
		b.answer(httptest.NewRecorder(), r)
	}
	switch {
	case fault.Hang:
		// The server notices that the client has gone only when the body has been read.
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-b.closing:
		}
	case fault.Drop:
		panic(http.ErrAbortHandler)
	case fault.Truncate:
		recorder := httptest.NewRecorder()
		b.answer(recorder, r)
		body := recorder.Body.Bytes()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(recorder.Code)
		_, _ = w.Write(body[:len(body)/2])
	default:
		maps.Copy(w.Header(), fault.Header)
		w.WriteHeader(fault.Status)
		_, _ = w.Write([]byte(fault.Body))
	}
}

func (b *BMC) takeFault(r *http.Request) *Fault {
	for i, fault := range b.faults {
		if fault.Method != "" && fault.Method != r.Method || !strings.HasSuffix(r.URL.Path, fault.Path) {
			continue
		}
		if fault.Times > 0 {
			fault.Times--
			if fault.Times == 0 {
				b.faults = slices.Delete(b.faults, i, i+1)
			}
		}

		return fault
	}

	return nil
}

func (b *BMC) answer(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimRight(r.URL.Path, "/")
	switch {
	case path == "/redfish/v1":
		b.root(w)
	case path == "/redfish/v1/SessionService/Sessions" && r.Method == http.MethodPost:
		b.login(w, r)
	case !b.authorized(r):
		fail(w, http.StatusUnauthorized, "Base.1.0.NoValidSession", "There is no valid session or the password is wrong.")
	case strings.HasPrefix(path, "/redfish/v1/SessionService/Sessions/") && r.Method == http.MethodDelete:
		b.logout(w, path)
	case path == "/redfish/v1/Systems":
		b.collection(w)
	default:
		b.answerSystem(w, r, path)
	}
}

func (b *BMC) root(w http.ResponseWriter) {
	root := map[string]any{"Systems": link("/redfish/v1/Systems")}
	if b.options.Sessions {
		root["Links"] = map[string]any{"Sessions": link("/redfish/v1/SessionService/Sessions")}
	}
	write(w, http.StatusOK, root)
}

func (b *BMC) login(w http.ResponseWriter, r *http.Request) {
	var login struct {
		UserName string `json:"UserName"`
		Password string `json:"Password"`
	}
	if json.NewDecoder(r.Body).Decode(&login) != nil ||
		login.UserName != b.options.Username || login.Password != b.options.Password {
		fail(w, http.StatusUnauthorized, "Base.1.0.NoValidSession", "The password is wrong.")

		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	token := fmt.Sprintf("token-%d", b.serial)
	location := fmt.Sprintf("/redfish/v1/SessionService/Sessions/%d", b.serial)
	b.sessions[location] = token
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", location)
	write(w, http.StatusCreated, map[string]any{})
}

func (b *BMC) logout(w http.ResponseWriter, path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, path)
	w.WriteHeader(http.StatusNoContent)
}

func (b *BMC) authorized(r *http.Request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	user, password, ok := r.BasicAuth()
	if ok && user == b.options.Username && password == b.options.Password {
		return true
	}
	token := r.Header.Get("X-Auth-Token")
	for _, known := range b.sessions {
		if token == known {
			return true
		}
	}

	return false
}

func (b *BMC) collection(w http.ResponseWriter) {
	members := make([]any, 0, len(b.options.Systems))
	for _, system := range b.options.Systems {
		members = append(members, link(system.Path()))
	}
	write(w, http.StatusOK, map[string]any{"Members": members, "Members@odata.count": len(members)})
}

func (b *BMC) answerSystem(w http.ResponseWriter, r *http.Request, path string) {
	id, rest, _ := strings.Cut(strings.TrimPrefix(path, "/redfish/v1/Systems/"), "/")
	b.mu.Lock()
	system := b.system(id)
	b.mu.Unlock()
	switch {
	case system == nil:
		fail(w, http.StatusNotFound, "Base.1.0.ResourceMissingAtURI", "There is no such resource.")
	case rest == "" && r.Method == http.MethodGet:
		b.show(w, system)
	case rest == "ResetActionInfo" && r.Method == http.MethodGet:
		b.mu.Lock()
		types := slices.Clone(system.ResetTypes)
		b.mu.Unlock()
		write(w, http.StatusOK, map[string]any{"Parameters": []any{
			map[string]any{"Name": "ResetType", "AllowableValues": types},
		}})
	case rest == "Actions/ComputerSystem.Reset" && r.Method == http.MethodPost:
		b.reset(w, r, system)
	default:
		fail(w, http.StatusMethodNotAllowed, "Base.1.0.OperationNotAllowed", "Not allowed.")
	}
}

func (b *BMC) show(w http.ResponseWriter, system *System) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var power any
	if system.Power != "" {
		power = system.Power
	}
	reset := map[string]any{"target": system.Path() + "/Actions/ComputerSystem.Reset"}
	switch {
	case system.ActionInfo:
		reset["@Redfish.ActionInfo"] = system.Path() + "/ResetActionInfo"
	case system.ResetTypes != nil:
		reset["ResetType@Redfish.AllowableValues"] = system.ResetTypes
	}
	actions := map[string]any{}
	if !system.NoReset {
		actions["#ComputerSystem.Reset"] = reset
	}
	w.Header().Set("ETag", `"1"`)
	write(w, http.StatusOK, map[string]any{
		"@odata.id": system.Path(), "Id": system.ID, "Name": system.Name, "UUID": system.UUID,
		"SerialNumber": "serial-" + system.ID, "Model": "fault", "Manufacturer": "stayput",
		"PowerState": power, "Actions": actions,
	})
}

func (b *BMC) reset(w http.ResponseWriter, r *http.Request, system *System) {
	var wanted struct {
		ResetType string `json:"ResetType"`
	}
	if json.NewDecoder(r.Body).Decode(&wanted) != nil {
		fail(w, http.StatusBadRequest, "Base.1.0.MalformedJSON", "Not JSON.")

		return
	}
	if r.Header.Get("If-Match") != "" {
		fail(w, http.StatusPreconditionFailed, "Base.1.0.PreconditionFailed", "No If-Match with actions here.")

		return
	}
	b.mu.Lock()
	if system.ResetTypes != nil && !slices.Contains(system.ResetTypes, wanted.ResetType) {
		b.mu.Unlock()
		fail(w, http.StatusBadRequest, "Base.1.0.ActionParameterValueNotInList", "Not in the list.")

		return
	}
	done := Action{System: system.ID, ResetType: wanted.ResetType}
	b.actions = append(b.actions, done)
	if !system.Ignore {
		system.Power = "On"
		if wanted.ResetType == "ForceOff" {
			system.Power = "Off"
		}
	}
	after := b.onAction
	b.mu.Unlock()
	if after != nil {
		after(done)
	}
	w.WriteHeader(http.StatusNoContent)
}

// system finds one; b.mu must be held.
func (b *BMC) system(id string) *System {
	for i := range b.options.Systems {
		if b.options.Systems[i].ID == id {
			return &b.options.Systems[i]
		}
	}

	return nil
}

func link(path string) map[string]any { return map[string]any{"@odata.id": path} }

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func fail(w http.ResponseWriter, status int, id, message string) {
	write(w, status, map[string]any{"error": map[string]any{
		"code": id, "message": message,
		"@Message.ExtendedInfo": []any{map[string]any{"MessageId": id, "Message": message}},
	}})
}
