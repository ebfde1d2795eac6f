package redfish_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

// forget ends all sessions, as a BMC that starts anew does.
func (s *scripted) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

func (s *scripted) openSessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.tokens)
}

func TestSessionIsRenewed(t *testing.T) {
	t.Parallel()
	s := script(t).withSessions()
	s.on("POST "+resetPath, reply{status: 204})
	m := s.open()
	s.forget()
	if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOn || s.logins != 2 {
		t.Errorf("a read: %s, %v after %d logins, want On after 2", power, err, s.logins)
	}
	// The session ends between the read and the action.
	s.does("GET "+systemPath, func(received) reply {
		s.forget()

		return reply{status: 200, body: s.resources[systemPath]}
	})
	if err := m.Do(t.Context(), bmc.ActionForceOff); err != nil || s.logins != 3 {
		t.Errorf("an action: %v after %d logins, want success after 3", err, s.logins)
	}
	// One that was answered with 401, and one that acted.
	if n := len(s.writes()); n != 2 {
		t.Errorf("sent %d actions, want the refused one and its repetition", n)
	}
	s.mu.Lock()
	s.answers["GET "+systemPath] = nil
	s.mu.Unlock()
	if err := m.Close(t.Context()); err != nil || s.openSessions() != 0 {
		t.Errorf("closing: %v, %d sessions left", err, s.openSessions())
	}
}

// A BMC that answers every session with 401 is asked twice, and no third time.
func TestSessionIsRenewedOnce(t *testing.T) {
	t.Parallel()
	s := script(t).withSessions()
	m := s.open()
	unauthorized := reply{status: 401, body: complaint("x", "no")}
	s.on("POST "+resetPath, unauthorized)
	wantKind(t, m.Do(t.Context(), bmc.ActionForceOff), bmc.Auth, "401")
	if s.logins != 2 || len(s.writes()) != 2 {
		t.Errorf("%d logins and %d actions, want 2 and 2", s.logins, len(s.writes()))
	}
	s.on("GET "+systemPath, unauthorized)
	_, err := m.Power(t.Context())
	wantKind(t, err, bmc.Auth, "401")
	if s.logins != 3 {
		t.Errorf("%d logins, want 3", s.logins)
	}
	// Once a call, and not once a request.
	s = script(t).withSessions()
	m = s.open()
	s.forget()
	s.on("POST "+resetPath, unauthorized)
	wantKind(t, m.Do(t.Context(), bmc.ActionForceOff), bmc.Auth, "401")
	if s.logins != 2 || len(s.writes()) != 1 {
		t.Errorf("%d logins and %d actions, want 2 and 1", s.logins, len(s.writes()))
	}
}

// A password that has changed is tried once: BMCs lock accounts.
func TestRenewalWithWrongPassword(t *testing.T) {
	t.Parallel()
	s := script(t).withSessions()
	m := s.open()
	s.forget()
	s.on("POST /redfish/v1/SessionService/Sessions", reply{status: 401, body: complaint("x", "wrong "+password)})
	err := m.Do(t.Context(), bmc.ActionForceOff)
	wantKind(t, err, bmc.Auth, "logging in", "credentialsName")
	if n := s.count("POST /redfish/v1/SessionService/Sessions"); n != 2 || len(s.writes()) != 0 {
		t.Errorf("%d logins and %d actions, want 2 and none", n, len(s.writes()))
	}
	// The renewal whose answer is lost: the action was refused, so that trying again is safe.
	s = script(t).withSessions()
	m = s.open()
	s.forget()
	s.does("POST /redfish/v1/SessionService/Sessions", func(received) reply { panic(http.ErrAbortHandler) })
	s.on("GET "+systemPath, reply{status: 401})
	wantKind(t, m.Do(t.Context(), bmc.ActionForceOff), bmc.Transient, "logging in")
}

func TestNoSessionLeft(t *testing.T) {
	t.Parallel()
	for _, answer := range []reply{
		{status: 503, header: map[string]string{"Retry-After": "30"}, body: complaint("IDRAC.2.8.RAC0218", "the maximum number of sessions")},
		{status: 403, body: complaint("Base.1.8.SessionLimitExceeded", "the maximum number of sessions")},
		{status: 400, body: complaint("Base.1.8.CreateLimitReachedForResource", "the maximum number of sessions")},
	} {
		s := script(t).withSessions()
		s.on("POST /redfish/v1/SessionService/Sessions", answer)
		_, err := redfish.Open(t.Context(), s.options())
		wantKind(t, err, bmc.Busy, "logging in", "the maximum number", "close sessions at the BMC")
		if answer.status == 503 && bmc.RetryAfter(err).Seconds() != 30 {
			t.Errorf("Retry-After: got %s, want 30s", bmc.RetryAfter(err))
		}
		if n := s.count("POST /redfish/v1/SessionService/Sessions"); n != 1 {
			t.Errorf("%d logins, want 1", n)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := script(t).withSessions()
	m := s.open()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Close(ended); err != nil || s.openSessions() != 0 {
		t.Errorf("closing with a context that has ended: %v, %d sessions left", err, s.openSessions())
	}
	_, err := m.Power(t.Context())
	wantKind(t, err, bmc.Transient, "was closed")
	wantKind(t, m.Do(t.Context(), bmc.ActionOn), bmc.Transient, "was closed")
	if s.logins != 1 {
		t.Errorf("a closed machine logs in again")
	}
	for _, status := range []int{401, 404, 500} {
		s = script(t).withSessions()
		m = s.open()
		s.on("DELETE /redfish/v1/SessionService/Sessions/1", reply{status: status})
		if err := m.Close(t.Context()); (err != nil) != (status == 500) || s.logins != 1 {
			t.Errorf("%d: got %v after %d logins", status, err, s.logins)
		}
	}
}

// A session whose path is told in the body only, or with another host, is closed too.
func TestPathOfSession(t *testing.T) {
	t.Parallel()
	const path = "/redfish/v1/SessionService/Sessions/9"
	for name, answer := range map[string]reply{
		"body": {status: 201, header: map[string]string{"X-Auth-Token": "token-1"}, body: link(path)},
		"host": {status: 201, header: map[string]string{"X-Auth-Token": "token-1", "Location": "https://192.0.2.1" + path}},
	} {
		s := script(t).withSessions()
		s.tokens[path] = "token-1"
		s.on("POST /redfish/v1/SessionService/Sessions", answer)
		if err := s.open().Close(t.Context()); err != nil || s.openSessions() != 0 {
			t.Errorf("%s: %v, %d sessions left", name, err, s.openSessions())
		}
	}
}

// Where sessions are named and do not work, Basic authentication does.
func TestSessionsThatDoNotWork(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.resources["/redfish/v1"]["Links"] = object{"Sessions": link("/redfish/v1/SessionService/Sessions")}
	s.on("POST /redfish/v1/SessionService/Sessions", reply{status: 405})
	if power, err := s.open().Power(t.Context()); err != nil || power != bmc.PowerOn {
		t.Errorf("got %s, %v", power, err)
	}
	// They stop working, after a change of the BMC's firmware.
	s = script(t).withSessions()
	m := s.open()
	s.mu.Lock()
	s.sessions = false
	s.mu.Unlock()
	s.on("POST /redfish/v1/SessionService/Sessions", reply{status: 405})
	if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOn {
		t.Errorf("after a change: got %s, %v", power, err)
	}
}

// An answer that is too long is refused before it fills the memory.
func TestHugeAnswer(t *testing.T) {
	t.Parallel()
	s := script(t)
	m := s.open()
	huge := `{"PowerState": "On", "Filler": "` + strings.Repeat("x", 5<<20) + `"}`
	s.on("GET "+systemPath, reply{status: 200, body: huge})
	_, err := m.Power(t.Context())
	wantKind(t, err, bmc.Transient, "longer than 4194304 bytes")
}
