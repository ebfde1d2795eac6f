// Package proxy injects faults between a client and a Redfish service: in front of any http.Handler, such as a BMC of
// package simulator, or of any URL, such as a real emulator or a BMC.
//
//	p := proxy.To(target, transport)       // or proxy.New(handler)
//	p.Inject(proxy.Rule{Method: "POST", Path: "ComputerSystem.Reset", Apply: true, Effect: proxy.Drop()})
//	server, err := endpoint.Start(endpoint.Options{Handler: p, TLS: true})
//
// A Rule selects requests, says whether the service gets them at all, and what the client gets in place of the true
// answer. The oldest rule that matches a request wins. Package fault has a catalogue of rules with names.
//
// It is for tests: it keeps every request's line, and it does not authenticate anybody.
package proxy
