package simulator

import (
	"fmt"
	"net/http"
	"time"
)

type session struct {
	token string
	used  time.Time
}

func (b *BMC) login(r *http.Request) *answer {
	body, ok := decode(r)
	if !ok || body["UserName"] != b.options.Username || body["Password"] != b.options.Password {
		b.counts.Refused++

		return b.refuse(http.StatusUnauthorized, "Base.1.12.NoValidSession", "The user name or password is wrong.")
	}
	rules := b.profile.Session
	b.endSessions()
	if rules.Limit > 0 && len(b.sessions) >= rules.Limit {
		return b.refuse(rules.FullStatus, b.profile.Prefix+rules.FullMessage, "The maximum number of user sessions is reached.")
	}
	b.serial++
	b.counts.Logins++
	id := fmt.Sprintf("%s/%d", sessionsPath, b.serial)
	token := fmt.Sprintf("simulated-token-%d", b.serial)
	b.sessions[id] = &session{token: token, used: b.clock.Now()}
	b.counts.SessionsPeak = max(b.counts.SessionsPeak, len(b.sessions))

	return &answer{
		status: http.StatusCreated, header: map[string]string{"X-Auth-Token": token, "Location": id},
		body: object{"@odata.id": id, "Id": itoa(b.serial), "Name": "User Session", "UserName": b.options.Username},
	}
}

// authorized checks a request's credentials.
func (b *BMC) authorized(r *http.Request) bool {
	b.endSessions()
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		for _, known := range b.sessions {
			if known.token == token {
				known.used = b.clock.Now()

				return true
			}
		}

		return false
	}
	user, password, ok := r.BasicAuth()
	switch {
	case !ok:
		return false
	case b.profile.Session.Basic && user == b.options.Username && password == b.options.Password:
		return true
	default:
		b.counts.Refused++

		return false
	}
}

// endSessions ends those that were not used for their life.
func (b *BMC) endSessions() {
	if b.profile.Session.Life <= 0 {
		return
	}
	for id, s := range b.sessions {
		if b.clock.Since(s.used) >= b.profile.Session.Life {
			delete(b.sessions, id)
		}
	}
}

// EndSessions ends all sessions, as a restart of the BMC does.
func (b *BMC) EndSessions() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.sessions)
}

// Occupy opens n sessions that nobody will close, as clients that died have left them.
func (b *BMC) Occupy(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range n {
		b.serial++
		b.sessions[fmt.Sprintf("%s/%d", sessionsPath, b.serial)] = &session{
			token: fmt.Sprintf("simulated-token-%d", b.serial), used: b.clock.Now(),
		}
	}
}

func (b *BMC) sessionArea(r *http.Request, rest []string) *answer {
	id := r.URL.Path
	switch {
	case !b.profile.Session.Offered:
		return b.missing()
	case len(rest) == 0 && r.Method == http.MethodGet:
		members := []any{}
		for id := range b.sessions {
			members = append(members, link(id))
		}

		return show(collection(sessionsPath, members))
	case b.sessions[id] == nil:
		return b.missing()
	case r.Method == http.MethodGet:
		return show(object{"@odata.id": id, "Name": "User Session", "UserName": b.options.Username})
	case r.Method == http.MethodDelete && b.profile.Session.LogoutStatus != 0:
		return b.refuse(b.profile.Session.LogoutStatus, "Base.1.12.InternalError", "The request failed.")
	case r.Method == http.MethodDelete:
		delete(b.sessions, id)

		return done(http.StatusNoContent)
	default:
		return b.notAllowed()
	}
}
