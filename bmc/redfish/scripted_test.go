package redfish_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

const (
	systemPath  = "/redfish/v1/Systems/1"
	managerPath = "/redfish/v1/Managers/1"
	resetPath   = systemPath + "/Actions/ComputerSystem.Reset"
)

type object = map[string]any

func link(path string) object { return object{"@odata.id": path} }

func links(paths ...string) []object {
	all := make([]object, 0, len(paths))
	for _, path := range paths {
		all = append(all, link(path))
	}

	return all
}

// received is one request as it came.
type received struct {
	method, path, ifMatch, host string
	body                        object
	raw                         string
}

// reply is one answer.
type reply struct {
	status int
	header map[string]string
	body   any
}

// scripted is a BMC of one system whose answers a test writes: resources are what GET gives, and answers take
// precedence, by "METHOD path", each once and the last one for ever.
type scripted struct {
	t      *testing.T
	server *httptest.Server

	mu        sync.Mutex
	resources map[string]object
	etags     map[string]string
	headers   map[string]http.Header
	answers   map[string][]func(received) reply
	requests  []received
	// sessions switches sessions on; tokens are those that are valid.
	sessions bool
	tokens   map[string]string
	logins   int
	pauses   []time.Duration
}

// script serves over plain HTTP, which is quick.
func script(t *testing.T) *scripted {
	t.Helper()
	s := newScripted(t)
	s.server.Start()

	return s
}

// scriptTLS serves over TLS.
func scriptTLS(t *testing.T, config *tls.Config) *scripted {
	t.Helper()
	s := newScripted(t)
	s.server.TLS = config
	s.server.StartTLS()

	return s
}

func newScripted(t *testing.T) *scripted {
	t.Helper()
	s := &scripted{
		t: t, etags: map[string]string{}, headers: map[string]http.Header{}, answers: map[string][]func(received) reply{},
		tokens: map[string]string{},
		resources: map[string]object{
			"/redfish/v1": {
				"RedfishVersion": "1.15.0", "Vendor": "Stayput", "Product": "scripted",
				"Systems": link("/redfish/v1/Systems"), "Managers": link("/redfish/v1/Managers"),
			},
			"/redfish/v1/Systems":  {"Members": links(systemPath), "Members@odata.count": 1},
			"/redfish/v1/Managers": {"Members": links(managerPath), "Members@odata.count": 1},
			managerPath:            {"FirmwareVersion": "7.10.30", "DateTime": "2026-01-02T03:04:05+02:00"},
			systemPath: {
				"@odata.id": systemPath, "UUID": strings.ToUpper(uuidOne), "SerialNumber": "S1", "Model": "M",
				"Manufacturer": "Stayput", "PowerState": "On", "Links": object{"ManagedBy": links(managerPath)},
				"Actions": object{"#ComputerSystem.Reset": object{
					"target": resetPath,
					"ResetType@Redfish.AllowableValues": []string{
						"On", "ForceOff", "ForceRestart", "GracefulShutdown", "GracefulRestart", "PowerCycle",
					},
				}},
			},
		},
	}
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.server.Close)

	return s
}

func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	uri := strings.TrimSuffix(r.URL.RequestURI(), "/")
	got := received{method: r.Method, path: uri, ifMatch: r.Header.Get("If-Match"), host: r.Host, raw: string(raw)}
	_ = json.Unmarshal(raw, &got.body)
	s.mu.Lock()
	s.requests = append(s.requests, got)
	answer := s.answerTo(got, r)
	s.mu.Unlock()
	reply := answer(got)
	for name, value := range reply.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(reply.status)
	switch body := reply.body.(type) {
	case nil:
	case string:
		_, _ = io.WriteString(w, body)
	default:
		if err := json.NewEncoder(w).Encode(body); err != nil {
			s.t.Errorf("encoding an answer: %v", err)
		}
	}
}

// answerTo finds the answer; s.mu must be held.
func (s *scripted) answerTo(got received, r *http.Request) func(received) reply {
	key := got.method + " " + got.path
	if s.sessions && key == "POST /redfish/v1/SessionService/Sessions" && len(s.answers[key]) == 0 {
		return func(received) reply { return s.login(got) }
	}
	if got.path != "/redfish/v1" && got.path != "/redfish/v1/SessionService/Sessions" && !s.authorized(r) {
		return func(received) reply {
			return reply{status: 401, body: complaint("Base.1.8.NoValidSession", "no session")}
		}
	}
	if queue := s.answers[key]; len(queue) > 0 {
		if len(queue) > 1 {
			s.answers[key] = queue[1:]
		}

		return queue[0]
	}
	if got.method == http.MethodDelete && s.tokens[got.path] != "" {
		delete(s.tokens, got.path)

		return func(received) reply { return reply{status: 204} }
	}
	resource, ok := s.resources[got.path]
	if !ok || got.method != http.MethodGet {
		return func(received) reply {
			return reply{status: 404, body: complaint("Base.1.8.ResourceMissingAtURI", "missing")}
		}
	}
	resource = maps.Clone(resource)
	header := map[string]string{}
	if tag := s.etags[got.path]; tag != "" {
		header["ETag"] = tag
	}
	for name := range s.headers[got.path] {
		header[name] = s.headers[got.path].Get(name)
	}

	return func(received) reply { return reply{status: 200, header: header, body: resource} }
}

func (s *scripted) login(got received) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logins++
	if got.body["UserName"] != user || got.body["Password"] != password {
		return reply{status: 401, body: complaint("Base.1.8.InsufficientPrivilege", "wrong")}
	}
	path := "/redfish/v1/SessionService/Sessions/" + string(rune('0'+s.logins))
	s.tokens[path] = "token-1-" + path

	return reply{status: 201, header: map[string]string{"X-Auth-Token": s.tokens[path], "Location": path}, body: object{}}
}

func (s *scripted) authorized(r *http.Request) bool {
	if !s.sessions {
		name, secret, ok := r.BasicAuth()

		return ok && name == user && secret == password
	}
	for _, token := range s.tokens {
		if token == r.Header.Get("X-Auth-Token") {
			return true
		}
	}

	return false
}

// withSessions lets the BMC offer sessions.
func (s *scripted) withSessions() *scripted {
	s.sessions = true
	s.resources["/redfish/v1"]["Links"] = object{"Sessions": link("/redfish/v1/SessionService/Sessions")}

	return s
}

// change changes a resource's properties.
func (s *scripted) change(path string, properties object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resources[path] == nil {
		s.resources[path] = object{}
	}
	maps.Copy(s.resources[path], properties)
}

// on queues answers to "METHOD path".
func (s *scripted) on(key string, answers ...reply) {
	for _, each := range answers {
		s.does(key, func(received) reply { return each })
	}
}

// does queues an answer that is computed.
func (s *scripted) does(key string, answer func(received) reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[key] = append(s.answers[key], answer)
}

// writes are the requests that were no GET, apart from logins and logouts.
func (s *scripted) writes() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	var writes []received
	for _, each := range s.requests {
		if each.method != http.MethodGet && !strings.Contains(each.path, "SessionService") {
			writes = append(writes, each)
		}
	}

	return writes
}

func (s *scripted) count(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, each := range s.requests {
		if each.method+" "+each.path == key {
			n++
		}
	}

	return n
}

func (s *scripted) options() bmc.Options {
	s.t.Helper()
	scheme, ca := "redfish+http", []byte(nil)
	if certificate := s.server.Certificate(); certificate != nil {
		scheme, ca = "redfish", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	}
	address, err := bmc.ParseAddress(scheme + "://" + s.server.Listener.Addr().String() + systemPath)
	if err != nil {
		s.t.Fatal(err)
	}

	return bmc.Options{Address: address, CA: ca, Credentials: bmc.Credentials{Username: user, Password: password}}
}

// open opens the machine; its pauses take no time and are recorded.
func (s *scripted) open() bmc.Machine {
	s.t.Helper()
	m, err := redfish.Open(s.t.Context(), s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	redfish.SetWait(m, func(ctx context.Context, pause time.Duration) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pauses = append(s.pauses, pause)

		return ctx.Err()
	})

	return m
}

// complaint is an error body of a BMC. arguments are the message's.
func complaint(id, message string, arguments ...string) object {
	return object{"error": object{
		"code": "Base.1.8.GeneralError", "message": "see the extended information; " + password,
		"@Message.ExtendedInfo": []any{object{"MessageId": id, "Message": message, "MessageArgs": arguments}},
	}}
}
