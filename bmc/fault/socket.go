package fault

import (
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
	"github.com/stayput-dev/stayput/bmc/fault/proxy"
)

// Faults below HTTP.
const (
	// UnknownIssuer shows a certificate of a CA that nobody knows.
	UnknownIssuer Kind = "UnknownIssuer"
	// WrongCertificate shows a certificate for another host.
	WrongCertificate Kind = "WrongCertificate"
	// ExpiredCertificate shows a certificate that was valid until yesterday.
	ExpiredCertificate Kind = "ExpiredCertificate"
	// PlainText speaks HTTP where HTTPS is expected.
	PlainText Kind = "PlainText"
	// ConnectionReset resets connections before anything was sent.
	ConnectionReset Kind = "ConnectionReset"
	// ConnectionRefused refuses connections.
	ConnectionRefused Kind = "ConnectionRefused"
	// RestartDuringAct restarts the BMC when it has followed the first power action: no answer, 150 seconds of refused
	// connections, and all sessions gone.
	RestartDuringAct Kind = "RestartDuringAct"
	// RestartBeforeAct restarts the BMC when the first power action arrives, before it is followed.
	RestartBeforeAct Kind = "RestartBeforeAct"
)

// restartTime is how long a BMC takes to restart: field reports say 1 to 6 minutes.
const restartTime = 150 * time.Second

func socketFaults() []Fault {
	certificate := func(which endpoint.Certificate) func(Target) error {
		return func(t Target) error { return t.Endpoint.Show(which) }
	}

	return []Fault{
		{Kind: UnknownIssuer, Layer: Socket, inject: certificate(endpoint.OtherIssuer)},
		{Kind: WrongCertificate, Layer: Socket, inject: certificate(endpoint.OtherHost)},
		{Kind: ExpiredCertificate, Layer: Socket, inject: certificate(endpoint.Expired)},
		{Kind: PlainText, Layer: Socket, inject: func(t Target) error {
			t.Endpoint.PlainText(true)

			return nil
		}},
		{Kind: ConnectionReset, Layer: Socket, inject: func(t Target) error {
			t.Endpoint.ResetNext(-1)

			return nil
		}},
		{Kind: ConnectionRefused, Layer: Socket, inject: func(t Target) error {
			t.Endpoint.Down()

			return nil
		}},
		{Kind: RestartDuringAct, Layer: Socket, inject: func(t Target) error { return injectRestart(t, true) }},
		{Kind: RestartBeforeAct, Layer: Socket, inject: func(t Target) error { return injectRestart(t, false) }},
	}
}

func injectRestart(t Target, apply bool) error {
	t.Proxy.Inject(actions(proxy.Rule{Times: 1, Apply: apply, Effect: proxy.Drop(), Then: func() {
		if t.Simulator != nil {
			t.Simulator.EndSessions()
		}
		t.Endpoint.DownFor(restartTime)
	}}))

	return nil
}
