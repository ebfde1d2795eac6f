// Package simulator is a Redfish service in this process whose behaviour is a table: one BMC with one or more systems,
// after a Profile of a vendor, on a clock that a test may own.
//
//	b := simulator.New(simulator.Options{Profile: simulator.IDRAC10(), Username: "admin", Password: "…", Clock: clock})
//	server, err := endpoint.Start(endpoint.Options{Handler: b, TLS: true})
//	b.Change(id, func(s *simulator.State) { s.Shown = new("On") }) // a stale reading
//	b.Configure(func(p *simulator.Profile) { p.Boot.Continuous = false })      // another firmware
//	b.Acts()                                                                   // what was asked of it, and its answers
//
// It serves what a power tool needs: service root, sessions and Basic authentication, systems with the action Reset,
// boot overrides at the system or at its Settings resource, virtual media under manager or system, tasks, logs and the
// manager's clock. Every write is recorded with the status that was answered, so that a test can count. A change of
// power takes Profile.Reset.Latency of the clock: with a fake clock the minutes that real BMCs need cost nothing.
//
// The profiles are made of what others reported of such BMCs, with the report named beside it; they are no captures of
// real ones, and a property that nobody reported is the plainest one. A profile is a starting point: see Configure.
//
// It refuses nothing that a BMC would accept without a reason in its Profile, keeps no state on disk, and does not
// validate more of a request than BMCs do.
package simulator
