package ipmi

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stayput-dev/stayput/bmc"
)

// Completion codes (IPMI 2.0, table 5-2). Those from 80h to BEh are a command's own: of the boot options, 80h is one that
// the BMC lacks, 81h another's change under way, 82h one that cannot be written.
const (
	codeNotKnown     = 0x80
	codeOthersChange = 0x81
	codeReadOnly     = 0x82
	codeNodeBusy     = 0xc0
	codeInvalid      = 0xc1
	codeInvalidLUN   = 0xc2
	codeTimeout      = 0xc3
	codeNoSpace      = 0xc4
	codeReservation  = 0xc5
	codeOutOfRange   = 0xc9
	codeNotPresent   = 0xcb
	codeInvalidField = 0xcc
	codeNoResponse   = 0xce
	codeDuplicate    = 0xcf
	codeUpdatingSDR  = 0xd0
	codeUpdating     = 0xd1
	codeStarting     = 0xd2
	codeNoneThere    = 0xd3
	codePrivilege    = 0xd4
	codePresentState = 0xd5
	codeDisabled     = 0xd6
	codeUnspecified  = 0xff
)

// wordedCodes are ipmitool's words for the completion codes that its commands other than "raw" end with.
func wordedCodes() map[string]int {
	return map[string]int{
		"Node busy": codeNodeBusy, "Invalid command": codeInvalid, "Timeout": codeTimeout, "Out of space": codeNoSpace,
		"Reservation cancelled or invalid": codeReservation, "Parameter out of range": codeOutOfRange,
		"Requested sensor, data, or record not found": codeNotPresent, "Invalid data field in request": codeInvalidField,
		"Command response could not be provided": codeNoResponse, "SDR Repository in update mode": codeUpdatingSDR,
		"Device firmware in update mode": codeUpdating, "BMC initialization in progress": codeStarting,
		"Destination unavailable": codeNoneThere, "Insufficient privilege level": codePrivilege,
		"Command not supported in present state": codePresentState, "Unspecified error": codeUnspecified,
		"Cannot execute command, command disabled": codeDisabled,
	}
}

// classify reads what ipmitool 1.8.19 -v says of a failure. sent tells that a write may have reached the BMC: then an
// answer that is missing, or says nothing, is of kind Unknown.
func classify(text string, sent bool) (kind bmc.Kind, detail string) {
	text = withoutNoise(text)
	kind, fix := classifySession(text)
	if kind == "" {
		code, known := completionCode(text)
		switch {
		case known:
			kind, fix = kindOfCode(code, sent)
		case sent:
			kind, fix = bmc.Unknown, "it was sent, and no answer came"
		default:
			kind, fix = bmc.Transient, "the BMC did not answer"
		}
	}
	detail = bmc.OneLine(text)
	switch {
	case fix == "":
		return kind, detail
	case detail == "":
		return kind, fix
	default:
		return kind, fix + " (ipmitool: " + detail + ")"
	}
}

// unreadParts are the lines in which ipmitool says that it could not read a part of what it prints.
func unreadParts(text string) string {
	return strings.Join(regexp.MustCompile(`(?m)^(Get SEL Entry .* failed| ?Device not present \(|FRU Read failed).*`).
		FindAllString(text, -1), "\n")
}

// withoutNoise drops what ipmitool -v says of steps that BMCs need not know, and of its own.
func withoutNoise(text string) string {
	const noise = `^(Loading IANA|Running Get VSO|Invalid completion code received|Discovered IPMB|Get HPM\.x|` +
		`Get PICMG|Get Next PEN|RAW REQ|RAW RSP|Close Session command failed|fru\.|[0-9a-f ]+$)`
	pattern := regexp.MustCompile(noise)
	var kept []string
	for line := range strings.Lines(text) {
		line = strings.Trim(line, "> \n")
		if line != "" && !pattern.MatchString(line) && !slices.Contains(kept, line) {
			kept = append(kept, line)
		}
	}

	return strings.Join(kept, "\n")
}

func completionCode(text string) (code int, known bool) {
	if match := regexp.MustCompile(`rsp=0x([0-9a-f]{1,2})\b`).FindStringSubmatch(text); match != nil {
		value, err := strconv.ParseUint(match[1], 16, 8)

		return int(value), err == nil
	}
	for words, code := range wordedCodes() {
		// As in "Get SEL Info command failed: Invalid command" and "Device not present (Invalid command)".
		if strings.Contains(text, ": "+words) || strings.Contains(text, "("+words) {
			return code, true
		}
	}

	return 0, false
}

// kindOfCode says what a completion code means. A BMC that gives one of those it need not explain may have acted.
func kindOfCode(code int, sent bool) (kind bmc.Kind, fix string) {
	switch code {
	case codeNodeBusy, codeNoSpace, codeUpdatingSDR, codeUpdating, codeStarting, codeNoneThere, codeOthersChange:
		return bmc.Busy, ""
	case codeTimeout, codeNoResponse, codeDuplicate, codeUnspecified:
		return unanswered(sent), ""
	case codeReservation:
		return bmc.Transient, ""
	case codePrivilege:
		return bmc.Auth, "the account, or the session's privilege level, may not do this; raise it at the BMC or in the address"
	case codePresentState:
		return bmc.Conflict, ""
	case codeNotKnown, codeReadOnly, codeInvalid, codeInvalidLUN, codeOutOfRange, codeNotPresent, codeInvalidField, codeDisabled:
		return bmc.Unsupported, ""
	default:
		return bmc.Conflict, ""
	}
}

// classifySession reads why there was no session; kind is "" when there was one. Nothing was sent then.
func classifySession(text string) (kind bmc.Kind, fix string) {
	for _, known := range []struct {
		kind    bmc.Kind
		fix     string
		pattern string
	}{
		{bmc.Busy, "the BMC has no session to spare", `insufficient resources`},
		{
			bmc.Unsupported, "the BMC refuses the cipher suite; set another one for it, 3 or 17",
			`invalid (authentication|integrity|confidentiality) algorithm|no matching (cipher suite|authentication|integrity)|` +
				`is not what we requested`,
		},
		{bmc.Auth, "the BMC refuses the user name", `unauthorized name|invalid name length`},
		{
			bmc.Auth, "the BMC refuses the password, or wants a K_g key",
			`RAKP 2 HMAC is invalid|invalid integrity check value|RAKP 4 .*invalid|unauthorized GUID`,
		},
		{
			// RAKP message 2 comes before, and by it ipmitool has verified that the BMC knows the password.
			bmc.Transient, "nothing was sent: the BMC knows the password, and fell silent in the middle of the login",
			`no response from RAKP 3 message`,
		},
		{bmc.Auth, silentLogin, `no response from RAKP 1 message`},
		{
			bmc.Auth, "the account may not have the session's privilege level; raise it at the BMC, or ask for less in the " +
				"address, with ?privilegelevel=OPERATOR",
			`invalid role|unauthorized role|Set Session Privilege Level to \S+ failed:`,
		},
		{
			bmc.Transient, "nothing was sent: no BMC answers; look whether the address is right, and IPMI over LAN on",
			`Get Auth Capabilities error|Get Channel Authentication Capabilities`,
		},
		{bmc.Transient, "nothing was sent: the host's name cannot be resolved", `Address lookup for`},
		{bmc.Transient, "nothing was sent", `Unable to establish`},
	} {
		if regexp.MustCompile(known.pattern).MatchString(text) {
			return known.kind, known.fix
		}
	}

	return "", ""
}

// silentLogin is what a login that gets no answer to its first message with the account's name can mean.
const silentLogin = "the BMC answers, but not to this account's login: there is no such user, or it may not use IPMI over LAN; " +
	"or the BMC, or the network, lost the message: if the account is right, try again"

// unanswered is the kind of a request with no answer.
func unanswered(sent bool) bmc.Kind {
	if sent {
		return bmc.Unknown
	}

	return bmc.Transient
}
