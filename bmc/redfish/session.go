package redfish

import (
	"context"
	"net/http"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// logoutTime bounds logging out.
const logoutTime = 10 * time.Second

// login opens a session where the BMC offers them, and falls back to Basic authentication where that does not work.
// After refused credentials it does not try the same ones in another way: BMCs lock accounts.
func (m *machine) login() error {
	const op = "logging in"
	m.actionInfo = nil
	m.transport.authenticate, m.transport.token = false, ""
	if m.sessions == "" {
		m.transport.authenticate = true

		return nil
	}
	got, err := m.sendOnce(request{
		op: op, method: http.MethodPost, uri: m.sessions,
		body: map[string]string{"UserName": m.options.Credentials.Username, "Password": m.options.Credentials.Password},
	})
	if err != nil {
		failed := m.classify(op, false, err)
		if kind := bmc.KindOf(failed); kind == bmc.NotFound || kind == bmc.Unsupported {
			m.transport.authenticate = true

			return nil
		}

		return failed
	}
	m.session = got.header.Get("Location")
	if m.session == "" {
		var body struct {
			ODataID string `json:"@odata.id"`
		}
		_ = decode(got.body, &body)
		m.session = body.ODataID
	}
	m.transport.token = got.header.Get("X-Auth-Token")
	m.transport.authenticate = true

	return nil
}

// Close implements bmc.Machine. It logs out even when ctx has ended, within 10 s: a session that is left to the BMC's
// idle timeout is one of few. It is safe to call twice.
func (m *machine) Close(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutTime)
	defer cancel()
	defer m.begin(ctx)()
	session := m.session
	m.session = ""
	const op = "logging out"
	_, err := m.sendOnce(request{op: op, method: http.MethodDelete, uri: session})
	switch statusOf(err) {
	case http.StatusUnauthorized, http.StatusNotFound:
		// It had ended already.
		return nil
	}
	if err != nil {
		return m.classify(op, false, err)
	}

	return nil
}
