package fault

import (
	"net/http"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/proxy"
)

// Faults of transport.
const (
	// ReadHangs answers no read of a system until the client gives up.
	ReadHangs Kind = "ReadHangs"
	// ActHangs follows a power action and never answers it.
	ActHangs Kind = "ActHangs"
	// ActUnheard neither follows the first power action nor answers it.
	ActUnheard Kind = "ActUnheard"
	// SlowHeaders sends the header of a system byte by byte, without end.
	SlowHeaders Kind = "SlowHeaders"
	// SlowBody sends the body of a system byte by byte.
	SlowBody Kind = "SlowBody"
	// TruncatedJSON sends half of a system as if it were all.
	TruncatedJSON Kind = "TruncatedJSON"
	// BrokenBody breaks the connection in the middle of a system.
	BrokenBody Kind = "BrokenBody"
	// HTMLPage answers reads of a system with 200 and the login page of a web interface.
	HTMLPage Kind = "HTMLPage"
	// EmptyBody answers reads of a system with 200 and nothing.
	EmptyBody Kind = "EmptyBody"
	// HugeBody puts 64 MiB into a system.
	HugeBody Kind = "HugeBody"
	// EndlessBody sends a system in chunks that never end.
	EndlessBody Kind = "EndlessBody"
	// GzipBody compresses all answers, though the client asked for identity, and marks ETags with "-gzip" (gofish pull
	// request 511).
	GzipBody Kind = "GzipBody"
	// RedirectSame sends reads of a system once to the same path at the same host, as sushy-tools does for names.
	RedirectSame Kind = "RedirectSame"
	// RedirectElsewhere sends reads to another host, which would get the credentials.
	RedirectElsewhere Kind = "RedirectElsewhere"
	// RedirectLoop sends reads of a system in a circle.
	RedirectLoop Kind = "RedirectLoop"
	// ActRedirected sends the first power action elsewhere, and does not follow it.
	ActRedirected Kind = "ActRedirected"
	// ReadReset resets the connection of the first read of a system.
	ReadReset Kind = "ReadReset"
	// ActResetBefore resets the connection of the first power action, and does not follow it.
	ActResetBefore Kind = "ActResetBefore"
	// ActResetAfter follows the first power action and then resets its connection.
	ActResetAfter Kind = "ActResetAfter"
	// AnswerLost follows the first power action and closes its connection without an answer.
	AnswerLost Kind = "AnswerLost"
	// AnswerCut accepts the first power action, and breaks off in its answer's body.
	AnswerCut Kind = "AnswerCut"
)

const (
	trickle   = 20 * time.Millisecond
	hugeBytes = 64 << 20
	loginPage = "<!DOCTYPE html><html><head><title>Login</title></head><body><form action=\"/login\"></form></body></html>"
)

func wireFaults() []Fault {
	html := http.Header{"Content-Type": {"text/html"}}

	return []Fault{
		{Kind: ReadHangs, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.Hang()}))},
		{Kind: ActHangs, Layer: Wire, inject: rules(actions(proxy.Rule{Apply: true, Effect: proxy.Hang()}))},
		{Kind: ActUnheard, Layer: Wire, inject: rules(actions(proxy.Rule{Times: 1, Effect: proxy.Hang()}))},
		{Kind: SlowHeaders, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.SlowHeaders(trickle)}))},
		{Kind: SlowBody, Layer: Wire, inject: rules(reads(proxy.Rule{Apply: true, Effect: proxy.SlowBody(trickle)}))},
		{Kind: TruncatedJSON, Layer: Wire, inject: rules(reads(proxy.Rule{Apply: true, Effect: proxy.Truncate()}))},
		{Kind: BrokenBody, Layer: Wire, inject: rules(reads(proxy.Rule{Apply: true, Effect: proxy.BreakOff()}))},
		{Kind: HTMLPage, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.Answer(http.StatusOK, html, loginPage)}))},
		{Kind: EmptyBody, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.Answer(http.StatusOK, nil, "")}))},
		{Kind: HugeBody, Layer: Wire, inject: rules(reads(proxy.Rule{Apply: true, Effect: proxy.Huge(hugeBytes)}))},
		{Kind: EndlessBody, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.Endless()}))},
		{Kind: GzipBody, Layer: Wire, Quirk: 13, inject: rules(proxy.Rule{Path: "/redfish/v1", Apply: true, Effect: proxy.Gzip()})},
		{Kind: RedirectSame, Layer: Wire, inject: rules(reads(proxy.Rule{
			Match:  func(r *http.Request) bool { return r.URL.RawQuery == "" },
			Effect: proxy.Redirect(http.StatusTemporaryRedirect, ""),
		}))},
		{Kind: RedirectElsewhere, Layer: Wire, inject: func(t Target) error {
			t.Proxy.Inject(reads(proxy.Rule{Effect: proxy.Redirect(http.StatusTemporaryRedirect, t.elsewhere())}))

			return nil
		}},
		{Kind: RedirectLoop, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.Redirect(http.StatusTemporaryRedirect, "")}))},
		{Kind: ActRedirected, Layer: Wire, inject: func(t Target) error {
			t.Proxy.Inject(actions(proxy.Rule{Times: 1, Effect: proxy.Redirect(http.StatusTemporaryRedirect, t.elsewhere())}))

			return nil
		}},
		{Kind: ReadReset, Layer: Wire, inject: rules(reads(proxy.Rule{Times: 1, Effect: proxy.Reset()}))},
		{Kind: ActResetBefore, Layer: Wire, inject: rules(actions(proxy.Rule{Times: 1, Effect: proxy.Reset()}))},
		{Kind: ActResetAfter, Layer: Wire, inject: rules(actions(proxy.Rule{Times: 1, Apply: true, Effect: proxy.Reset()}))},
		{Kind: AnswerLost, Layer: Wire, inject: rules(actions(proxy.Rule{Times: 1, Apply: true, Effect: proxy.Drop()}))},
		{Kind: AnswerCut, Layer: Wire, inject: rules(actions(proxy.Rule{
			Times: 1, Apply: true, Effect: func(w http.ResponseWriter, _ *proxy.Exchange) {
				w.Header().Set("Content-Length", "1000")
				w.WriteHeader(http.StatusOK)
				_, _ = w.Write([]byte(`{"@Message.ExtendedInfo":[`))
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			},
		}))},
	}
}

func (t Target) elsewhere() string {
	if t.Elsewhere == "" {
		return "http://127.0.0.1:1"
	}

	return t.Elsewhere
}
