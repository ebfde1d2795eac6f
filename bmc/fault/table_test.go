package fault_test

import (
	"slices"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func kinds(of ...bmc.Kind) []bmc.Kind { return of }

func none() map[string]int {
	return map[string]int{"ForceOff": 0, "ForceRestart": 0, "On": 0, "Boot": 0, "Insert": 0}
}

// plays is the table: every fault with an operation that makes sense for it.
func plays() []play {
	return slices.Concat(wirePlays(), answerPlays(), socketPlays(), powerPlays(), bootPlays(), mediaPlays(), identityPlays())
}

func wirePlays() []play {
	return []play{
		{fault: fault.ReadHangs, does: "power", hurried: true, ends: kinds(bmc.Transient)},
		{fault: fault.ActHangs, does: "reset", hurried: true, power: "On"},
		{fault: fault.ActUnheard, does: "off", hurried: true, ends: kinds(expires), power: "On", acts: none()},
		{fault: fault.SlowHeaders, does: "power", hurried: true, ends: kinds(bmc.Transient)},
		{fault: fault.SlowBody, does: "power", hurried: true, ends: kinds(bmc.Transient)},
		{fault: fault.TruncatedJSON, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.BrokenBody, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.HTMLPage, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.HTMLPage, does: "off", ends: kinds(bmc.Transient), power: "On", acts: none()},
		{fault: fault.EmptyBody, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.HugeBody, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.EndlessBody, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.GzipBody, does: "power", ends: kinds(succeeds, bmc.Transient)},
		{fault: fault.RedirectSame, does: "off", power: "Off"},
		{fault: fault.RedirectElsewhere, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.RedirectLoop, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.ActRedirected, does: "off", ends: kinds(succeeds, bmc.Unsupported)},
		{fault: fault.ReadReset, does: "off", power: "Off"},
		{fault: fault.ActResetBefore, does: "off", ends: kinds(expires), power: "On", acts: none()},
		{fault: fault.ActResetAfter, does: "off", power: "Off"},
		{fault: fault.ActResetAfter, does: "reset", power: "On"},
		{fault: fault.AnswerLost, does: "off", power: "Off"},
		{fault: fault.AnswerLost, does: "cycle", power: "On"},
		{fault: fault.AnswerLost, does: "reset", power: "On"},
		{fault: fault.AnswerCut, does: "off", power: "Off"},
		{fault: fault.AnswerCut, does: "reset", power: "On"},
	}
}

func answerPlays() []play {
	return []play{
		{fault: fault.UnauthorizedLater, does: "off", first: true, ends: kinds(bmc.Auth), power: "On", acts: none(), leaves: true},
		{fault: fault.ActForbidden, does: "off", ends: kinds(bmc.Auth), power: "On"},
		{fault: fault.ReadBusy, does: "off", power: "Off"},
		{fault: fault.ReadBusyBare, does: "power", ends: kinds(bmc.Busy)},
		{fault: fault.TooMany, does: "off", power: "Off"},
		{fault: fault.ReadFails, does: "off", power: "Off"},
		{fault: fault.NotFoundRace, does: "power", ends: kinds(bmc.NotFound)},
		{fault: fault.ActBusy, does: "off", power: "Off"},
		{fault: fault.ActBusyBare, does: "off", power: "Off"},
		{fault: fault.DataSources, does: "off", power: "Off"},
		{fault: fault.DataSourcesOnRead, does: "off", power: "Off"},
		{fault: fault.BootInPost, does: "boot", ends: kinds(bmc.Busy), acts: none()},
		{fault: fault.BootInPost, does: "boot again", acts: map[string]int{"Boot": 2}},
		{fault: fault.ErrorThoughApplied, does: "off", power: "Off"},
		{fault: fault.ErrorThoughApplied, does: "reset", power: "On"},
		{fault: fault.GatewayThoughApplied, does: "off", power: "Off"},
		{fault: fault.GatewayThoughApplied, does: "reset", power: "On"},
		{fault: fault.RefusedThoughApplied, does: "off", power: "Off"},
		{fault: fault.ActConflictOnce, does: "off", power: "Off"},
		{fault: fault.CredentialsEchoed, does: "power", ends: kinds(bmc.Transient)},
		{fault: fault.CredentialsEchoedOnAct, does: "off", ends: kinds(bmc.Conflict), power: "On"},
		{fault: fault.CredentialsEchoedOnLogin, does: "open", ends: kinds(bmc.Auth)},
		{fault: fault.LoginBusy, does: "off", first: true, power: "Off"},
		{fault: fault.OddPowerType, does: "no power"},
		{fault: fault.PowerPaused, does: "no power"},
	}
}

func socketPlays() []play {
	return []play{
		{fault: fault.UnknownIssuer, does: "open", tls: true, ends: kinds(bmc.Untrusted)},
		{fault: fault.WrongCertificate, does: "open", tls: true, ends: kinds(bmc.Untrusted)},
		{fault: fault.ExpiredCertificate, does: "open", tls: true, ends: kinds(bmc.Untrusted)},
		{fault: fault.PlainText, does: "open", tls: true, ends: kinds(bmc.Transient, bmc.Unsupported)},
		{fault: fault.ConnectionReset, does: "force off", tls: true, ends: kinds(bmc.Transient), power: "On", acts: none(), leaves: true},
		{fault: fault.ConnectionRefused, does: "force off", tls: true, ends: kinds(bmc.Transient), power: "On", acts: none(), leaves: true},
		{fault: fault.RestartDuringAct, does: "cycle", tls: true, power: "On"},
		{fault: fault.RestartDuringAct, does: "off", power: "Off"},
		{fault: fault.RestartDuringAct, does: "reset", power: "On"},
		{fault: fault.RestartBeforeAct, does: "off", ends: kinds(expires), power: "On", acts: none()},
	}
}

func powerPlays() []play {
	noRestart := func(p simulator.Profile) []bmc.Kind {
		if !slices.Contains(p.Reset.Types, "ForceRestart") {
			return kinds(bmc.Unsupported)
		}

		return nil
	}

	return []play{
		{fault: fault.TaskStuck, does: "off", power: "Off"},
		{fault: fault.TaskFails, does: "off", ends: kinds(expires), power: "On"},
		{fault: fault.TaskVanishes, does: "off", power: "Off"},
		{fault: fault.ActIgnored, does: "off", ends: kinds(expires), power: "On"},
		{fault: fault.StaleOn, does: "cycle", power: "On"},
		{fault: fault.StaleOn, does: "off", power: "Off"},
		{fault: fault.StuckTransition, does: "off", ends: kinds(expires), power: "On"},
		{fault: fault.SlowPower, does: "cycle", power: "On"},
		{fault: fault.PowerNull, does: "no power"},
		{fault: fault.PowerNull, does: "off", ends: kinds(expires)},
		{fault: fault.PowerMissing, does: "no power"},
		{fault: fault.OnConflict, does: "cycle", power: "On"},
		{fault: fault.PostBusy, does: "on, off", power: "Off"},
		{fault: fault.Already400, does: "off race", power: "Off"},
		{fault: fault.Already409, does: "off race", power: "Off"},
		{fault: fault.DeafOS, does: "shutdown", ends: kinds(expires), power: "On"},
		{fault: fault.RestartStaysOff, does: "reset", power: "On"},
		{fault: fault.IgnoredInTransition, does: "cycle", power: "On"},
		{fault: fault.ForceOffUnwired, does: "off", ends: kinds(expires), power: "On", acts: none()},
		{fault: fault.NoForceRestart, does: "reset", power: "On"},
		{fault: fault.NoGracefulRestart, does: "soft restart", ends: kinds(bmc.Unsupported), power: "On", acts: none()},
		{fault: fault.TypesInActionInfo, does: "reset", power: "On"},
		{fault: fault.TypesNowhere, does: "reset", except: noRestart, power: "On"},
		{fault: fault.NoResetAction, does: "off", ends: kinds(bmc.Unsupported), power: "On", acts: none()},
		{fault: fault.NoResetAction, does: "force off", ends: kinds(bmc.Unsupported), power: "On", acts: none()},
		{fault: fault.IfMatchOnAct, does: "reset", power: "On"},
	}
}

func bootPlays() []play {
	return []play{
		{fault: fault.ETagRefused, does: "boot"},
		{fault: fault.ETagWeak, does: "boot"},
		{fault: fault.ETagRequired, does: "boot"},
		{fault: fault.ETagEmpty, does: "boot"},
		{fault: fault.SettingsOnlyBoot, does: "boot"},
		{fault: fault.SettingsWithoutBoot, does: "boot"},
		{fault: fault.TargetsInSettings, does: "boot"},
		{fault: fault.BootPending, does: "boot"},
		{fault: fault.RevertsToOnce, does: "boot always"},
		{fault: fault.EqualEnabledRefused, does: "boot"},
		{fault: fault.BootModeFlips, does: "boot again", acts: map[string]int{"Boot": 2}},
		{fault: fault.ContinuousRefused, does: "boot always", ends: kinds(bmc.Unsupported), acts: none()},
		{fault: fault.FullBootRequired, does: "boot"},
		{fault: fault.MinimalBootRequired, does: "boot"},
		{fault: fault.BootModeReadOnly, does: "boot"},
		{fault: fault.BootModeReadOnly, does: "boot Legacy", ends: kinds(bmc.Unsupported), acts: none()},
		{fault: fault.BootModeAbsent, does: "boot"},
		{fault: fault.OnceConsumed, does: "boot lost"},
		{fault: fault.BootIgnored, does: "boot lost"},
		{fault: fault.BootRefusedThoughKept, does: "boot", ends: kinds(bmc.Conflict, bmc.Unsupported, bmc.Unknown)},
		{fault: fault.OnlyUsbCd, does: "boot"},
		{fault: fault.NoCD, does: "boot", ends: kinds(bmc.Unsupported), acts: none()},
	}
}

func mediaPlays() []play {
	// What was in the slots is ejected first.
	twice := map[string]int{"Eject": 2}

	return []play{
		{fault: fault.EjectingBusy, does: "media", acts: twice},
		{fault: fault.EjectingError, does: "media", acts: twice},
		{fault: fault.EjectingForEver, does: "media", ends: kinds(bmc.Busy), acts: map[string]int{"Insert": 0}},
		{fault: fault.InsertDoneThough500, does: "media"},
		{fault: fault.InsertAnswerLost, does: "media"},
		{fault: fault.InsertUnheard, does: "media", ends: kinds(bmc.Unknown), acts: none()},
		{fault: fault.Slot405, does: "media", ends: kinds(bmc.Unsupported), acts: none()},
		{fault: fault.Slot400, does: "media", ends: kinds(bmc.Unsupported, bmc.Conflict), acts: none()},
		{fault: fault.SlotWithoutInsert, does: "media"},
		{fault: fault.ImageStays, does: "media"},
		{fault: fault.InsertedStays, does: "media"},
		{fault: fault.MediaUnderSystem, does: "media"},
		{fault: fault.MediaUnderManager, does: "media"},
		{fault: fault.MediaByPatch, does: "media"},
		{fault: fault.TransferProtocolRequired, does: "media"},
		{fault: fault.MediaFlagsRefused, does: "media"},
		{fault: fault.MediaCredentialsRequired, does: "media"},
		{fault: fault.EjectWantsBody, does: "media"},
		{fault: fault.OccupiedRefused, does: "media", acts: twice},
		{fault: fault.ManagedByMissing, does: "media"},
		{fault: fault.OnlyDVD, does: "media"},
		{fault: fault.NoMedia, does: "no media"},
	}
}

func identityPlays() []play {
	keepsConsole := func(p simulator.Profile) []bmc.Kind {
		if !p.Log.Console {
			return kinds(bmc.Unsupported)
		}

		return nil
	}

	return []play{
		{fault: fault.TwinName, does: "off", first: true, power: "Off"},
		{fault: fault.TwinName, does: "open any", first: true, ends: kinds(bmc.Ambiguous)},
		{fault: fault.ExtraBoard, does: "off", first: true, power: "Off"},
		{fault: fault.ExtraBoard, does: "open any", first: true, ends: kinds(succeeds, bmc.Ambiguous)},
		{fault: fault.MemberFails, does: "off", first: true, power: "Off"},
		{fault: fault.WrongMachine, does: "open", ends: kinds(bmc.Mismatch)},
		{fault: fault.WrongMachine, does: "off", ends: kinds(bmc.Mismatch), power: "On", acts: none()},
		{fault: fault.OtherByteOrder, does: "open"},
		{fault: fault.ZeroUUID, does: "open"},
		{fault: fault.SystemGone, does: "power", ends: kinds(bmc.NotFound)},
		{fault: fault.SessionsFull, does: "open", ends: kinds(bmc.Busy), leaves: true},
		{fault: fault.SessionLost, does: "off", power: "Off"},
		{fault: fault.SessionShort, does: "cycle", power: "On"},
		{fault: fault.BasicOnly, does: "cycle", first: true, power: "On"},
		{fault: fault.SessionsOnly, does: "cycle", first: true, power: "On"},
		{fault: fault.LogoutFails, does: "off", power: "Off", leaves: true},
		{fault: fault.WrongPassword, does: "open", ends: kinds(bmc.Auth)},
		{fault: fault.ClockOff, does: "log"},
		{fault: fault.ClockOff, does: "identity"},
		{fault: fault.LogPaged, does: "log"},
		{fault: fault.ConsoleHostile, does: "console", except: keepsConsole},
		{fault: fault.ConsoleGrows, does: "console", except: keepsConsole},
		{fault: fault.ConsoleWhole, does: "console", except: keepsConsole},
		{fault: fault.NoLog, does: "log", ends: kinds(bmc.Unsupported)},
	}
}
