package fault

import (
	"net/http"

	"github.com/stayput-dev/stayput/bmc/fault/proxy"
)

// Faults of answers.
const (
	// UnauthorizedLater answers 401 to all but the first two requests after the login, and to all logins.
	UnauthorizedLater Kind = "UnauthorizedLater"
	// ActForbidden refuses power actions to this account.
	ActForbidden Kind = "ActForbidden"
	// ReadBusy answers the first two reads of a system with 503 and Retry-After: 7.
	ReadBusy Kind = "ReadBusy"
	// ReadBusyBare answers all reads of a system with 503, no Retry-After and an HTML page.
	ReadBusyBare Kind = "ReadBusyBare"
	// TooMany answers the first read of a system with 429 and Retry-After: 5.
	TooMany Kind = "TooMany"
	// ReadFails answers the first read of a system with 500.
	ReadFails Kind = "ReadFails"
	// NotFoundRace answers the first two reads of a system with 404, as an iDRAC does while a job is being created (sushy,
	// rn fix-dell-bmc-404-race).
	NotFoundRace Kind = "NotFoundRace"
	// ActBusy refuses the first power action with 503 and Retry-After: 7.
	ActBusy Kind = "ActBusy"
	// ActBusyBare refuses the first two power actions with 503 without Retry-After.
	ActBusyBare Kind = "ActBusyBare"
	// DataSources refuses the first power action with 500 SYS518 (sushy, rn fix-retry-volume-sys518).
	DataSources Kind = "DataSources"
	// DataSourcesOnRead answers the first read of a system with 503 SYS518.
	DataSourcesOnRead Kind = "DataSourcesOnRead"
	// BootInPost refuses the first write of the boot override with 400 UnableToModifyDuringSystemPOST (launchpad ironic
	// 2136275).
	BootInPost Kind = "BootInPost"
	// ErrorThoughApplied follows the first power action and answers 500.
	ErrorThoughApplied Kind = "ErrorThoughApplied"
	// GatewayThoughApplied follows the first power action and answers 502 with an HTML page, as a web server before the
	// BMC's service does when that is too slow.
	GatewayThoughApplied Kind = "GatewayThoughApplied"
	// RefusedThoughApplied follows the first power action and answers 400 (community.general 5091).
	RefusedThoughApplied Kind = "RefusedThoughApplied"
	// ActConflictOnce refuses the first power action with 409 without doing it.
	ActConflictOnce Kind = "ActConflictOnce"
	// CredentialsEchoed fails reads of a system with an error that quotes the credentials that were sent.
	CredentialsEchoed Kind = "CredentialsEchoed"
	// CredentialsEchoedOnAct does so for power actions, CredentialsEchoedOnLogin for logins.
	CredentialsEchoedOnAct   Kind = "CredentialsEchoedOnAct"
	CredentialsEchoedOnLogin Kind = "CredentialsEchoedOnLogin"
	// LoginBusy refuses the first login with 503 RAC0218: no session is free (bb-Ricardo/check_redfish 89).
	LoginBusy Kind = "LoginBusy"
	// OddPowerType tells PowerState as a number.
	OddPowerType Kind = "OddPowerType"
	// PowerPaused tells PowerState Paused, which is neither On nor Off.
	PowerPaused Kind = "PowerPaused"
)

func answerFaults() []Fault {
	after := func(seconds string) http.Header { return http.Header{"Retry-After": {seconds}} }
	html := http.Header{"Content-Type": {"text/html"}}
	busy := proxy.ErrorBody("Base.1.12.ServiceTemporarilyUnavailable", "The service is temporarily unavailable.")
	internal := proxy.Refuse(http.StatusInternalServerError, "Base.1.12.InternalError", "The request failed.")
	sources := "IDRAC.2.8.SYS518"
	session := func(rule proxy.Rule) proxy.Rule {
		rule.Method, rule.Path, rule.Exact = http.MethodPost, "/SessionService/Sessions", true

		return rule
	}
	power := func(value any) proxy.Effect {
		return proxy.Edit(func(system map[string]any) {
			if _, told := system["PowerState"]; told {
				system["PowerState"] = value
			}
		})
	}
	expired := proxy.Refuse(http.StatusUnauthorized, "Base.1.12.NoValidSession", "There is no valid session.")

	return []Fault{
		{Kind: UnauthorizedLater, Layer: Wire, inject: rules(
			afterRoot(proxy.Rule{Skip: 2, Effect: expired}), session(proxy.Rule{Skip: 1, Effect: expired}))},
		{Kind: ActForbidden, Layer: Wire, inject: rules(actions(proxy.Rule{
			Effect: proxy.Refuse(http.StatusForbidden, "Base.1.12.InsufficientPrivilege", "The privileges do not suffice."),
		}))},
		{Kind: ReadBusy, Layer: Wire, inject: rules(reads(proxy.Rule{
			Times: 2, Effect: proxy.Answer(http.StatusServiceUnavailable, after("7"), busy),
		}))},
		{Kind: ReadBusyBare, Layer: Wire, inject: rules(reads(proxy.Rule{
			Effect: proxy.Answer(http.StatusServiceUnavailable, html, "<html><body>503 Service Unavailable</body></html>"),
		}))},
		{Kind: TooMany, Layer: Wire, inject: rules(reads(proxy.Rule{
			Times: 1, Effect: proxy.Answer(http.StatusTooManyRequests, after("5"), "{}"),
		}))},
		{Kind: ReadFails, Layer: Wire, inject: rules(reads(proxy.Rule{Times: 1, Effect: internal}))},
		{Kind: NotFoundRace, Layer: Wire, Quirk: 6, inject: rules(reads(proxy.Rule{
			Times: 2, Effect: proxy.Refuse(http.StatusNotFound, "Base.1.12.ResourceMissingAtURI", "There is no such resource."),
		}))},
		{Kind: ActBusy, Layer: Wire, inject: rules(actions(proxy.Rule{
			Times: 1, Effect: proxy.Answer(http.StatusServiceUnavailable, after("7"), busy),
		}))},
		{Kind: ActBusyBare, Layer: Wire, inject: rules(actions(proxy.Rule{
			Times: 2, Effect: proxy.Answer(http.StatusServiceUnavailable, nil, busy),
		}))},
		{Kind: DataSources, Layer: Wire, Quirk: 4, inject: rules(actions(proxy.Rule{
			Times: 1, Effect: proxy.Refuse(http.StatusInternalServerError, sources, "Unable to display the data sources."),
		}))},
		{Kind: DataSourcesOnRead, Layer: Wire, Quirk: 4, inject: rules(reads(proxy.Rule{
			Times: 1, Effect: proxy.Refuse(http.StatusServiceUnavailable, sources, "Unable to display the data sources."),
		}))},
		{Kind: BootInPost, Layer: Wire, Quirk: 2, inject: rules(proxy.Rule{
			Method: http.MethodPatch, Path: "/Systems/", Times: 1,
			Effect: proxy.Refuse(http.StatusBadRequest, "iLO.2.14.UnableToModifyDuringSystemPOST", "The system is in POST."),
		})},
		{Kind: ErrorThoughApplied, Layer: Wire, inject: rules(actions(proxy.Rule{Times: 1, Apply: true, Effect: internal}))},
		{Kind: GatewayThoughApplied, Layer: Wire, inject: rules(actions(proxy.Rule{
			Times: 1, Apply: true, Effect: proxy.Answer(http.StatusBadGateway, html, "<html><body>502 Bad Gateway</body></html>"),
		}))},
		{Kind: RefusedThoughApplied, Layer: Wire, Quirk: 29, inject: rules(actions(proxy.Rule{
			Times: 1, Apply: true, Effect: proxy.Refuse(http.StatusBadRequest, "Base.1.12.GeneralError", "A general error has occurred."),
		}))},
		{Kind: ActConflictOnce, Layer: Wire, inject: rules(actions(proxy.Rule{
			Times: 1, Effect: proxy.Refuse(http.StatusConflict, "Base.1.12.ResourceInUse", "The resource is in use."),
		}))},
		{Kind: CredentialsEchoed, Layer: Wire, inject: rules(reads(proxy.Rule{Effect: proxy.Echo(http.StatusInternalServerError)}))},
		{Kind: CredentialsEchoedOnAct, Layer: Wire, inject: rules(actions(proxy.Rule{Effect: proxy.Echo(http.StatusBadRequest)}))},
		{Kind: CredentialsEchoedOnLogin, Layer: Wire, inject: rules(session(proxy.Rule{Effect: proxy.Echo(http.StatusUnauthorized)}))},
		{Kind: LoginBusy, Layer: Wire, Quirk: 7, inject: rules(session(proxy.Rule{
			Times: 1, Effect: proxy.Refuse(http.StatusServiceUnavailable, "IDRAC.2.8.RAC0218", "The maximum number of sessions is reached."),
		}))},
		{Kind: OddPowerType, Layer: Wire, inject: rules(reads(proxy.Rule{Apply: true, Effect: power(1)}))},
		{Kind: PowerPaused, Layer: Wire, inject: rules(reads(proxy.Rule{Apply: true, Effect: power("Paused")}))},
	}
}
