package simulator_test

import (
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(p *simulator.Profile) { p.Session.Limit, p.Session.Life = 2, time.Minute })
	const login = `{"UserName":"admin","Password":"secret"}`
	_, header, _ := b.ask("POST", sessions, login)
	token, mine := header.Get("X-Auth-Token"), header.Get("Location")
	b.want(200, "GET", system, "", "X-Auth-Token", token)
	b.want(401, "GET", system, "", "X-Auth-Token", "another")
	b.want(401, "POST", sessions, `{"UserName":"admin","Password":"wrong"}`)
	b.want(201, "POST", sessions, login)
	b.want(503, "POST", sessions, login)
	if got := b.Counts(); got.Sessions != 2 || got.SessionsPeak != 2 || got.Logins != 2 || got.Refused != 1 {
		t.Errorf("counts: %+v", got)
	}
	b.want(204, "DELETE", mine, "")
	b.want(401, "GET", system, "", "X-Auth-Token", token)
	b.clock.Step(time.Minute)
	if got := b.Counts().Sessions; got != 0 {
		t.Errorf("%d sessions after their life", got)
	}
	b.Occupy(2)
	b.want(503, "POST", sessions, login)
	b.EndSessions()
	b.want(201, "POST", sessions, login)
	b.Configure(func(p *simulator.Profile) { p.Session.Basic = false })
	b.want(401, "GET", system, "")
	b.Heal()
	b.want(200, "GET", system, "")
	b.SetPassword("changed")
	b.want(401, "GET", system, "")
	b.want(200, "GET", "/redfish/v1/", "")
}
