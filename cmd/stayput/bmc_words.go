package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stayput-dev/stayput/bmc"
)

const redactedWord = "<redacted>"

// redacted takes out of a word of the command line what may be a password, so that it can be quoted: all that is before
// an "@", but for a scheme, since a password may hold any character; and the values of a query, which signed URLs have.
func redacted(word string) string {
	scheme, rest, found := strings.Cut(word, "://")
	if !found {
		scheme, rest = "", word
	} else {
		scheme += "://"
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = redactedWord + rest[at:]
	}
	if before, _, query := strings.Cut(rest, "?"); query {
		rest = before + "?" + redactedWord
	}

	return scheme + rest
}

// redactedWords is redacted of each.
func redactedWords(words []string) string {
	clean := make([]string, 0, len(words))
	for _, each := range words {
		clean = append(clean, redacted(each))
	}

	return strings.Join(clean, " ")
}

// rewordedError is an error with another text.
type rewordedError struct {
	error

	text string
}

func (e rewordedError) Error() string { return e.text }

func (e rewordedError) Unwrap() error { return e.error }

// redactedError is the error of a flag, without the value as it was typed.
func redactedError(err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		value := wrong.GetValue()

		return rewordedError{err, strings.ReplaceAll(err.Error(), strconv.Quote(value), strconv.Quote(redacted(value)))}
	}
	if odd, ok := errors.AsType[*pflag.NotExistError](err); ok && odd.GetSpecifiedShortnames() != "" {
		// What follows the letter may be what ipmitool takes with -P.
		return rewordedError{err, fmt.Sprintf("unknown flag: -%.1s", odd.GetSpecifiedShortnames())}
	}

	if _, ok := errors.AsType[*pflag.InvalidSyntaxError](err); ok {
		return rewordedError{err, "a flag has no name"}
	}

	return err
}

// The words in which the library says where an address and credentials come from: it knows BareMetalHosts only.
const (
	libraryAddress = "spec.bmc.address"
	librarySecret  = "the Secret that spec.bmc.credentialsName names"
)

// advise adds what to do next to an error of a BMC, and names what this command uses.
func advise(err error, target bmcTarget) error {
	failed, ok := errors.AsType[*bmc.Error](err)
	if !ok {
		return err
	}
	text := err.Error()
	if target.source != "" {
		text = strings.ReplaceAll(text, librarySecret, target.source)
	}
	if target.host == nil {
		text = strings.ReplaceAll(text, librarySecret, "the file that --credentials-file names")
		text = strings.ReplaceAll(text, libraryAddress, "the address")
	}
	advice := failed.Advice()
	if failed.Kind == bmc.Auth && target.source != "" && !strings.Contains(text, target.source) {
		advice = strings.Replace(advice, "the credentials", "the credentials of "+target.source, 1)
	}
	// A machine that is left off has its advice in its text, and the command in what follows.
	if !failed.LeftOff {
		text += fmt.Sprintf(" (%s: %s)", failed.Kind, advice)
	}

	return rewordedError{err, text}
}

// onCommands are what switches the target on, for a person to copy: by its name, and by its BMC's address.
func (f *bmcFlags) onCommands(cmd *cobra.Command, target bmcTarget) (byName, byAddress string) {
	const command = "stayput bmc power"
	name := target.name
	if target.host != nil {
		name = target.host.Namespace + "/" + target.host.Name
	}
	words := []string{command, shellWord(name), "on"}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "kubeconfig", "context", "cluster", "user", "server", "namespace", "certificate-authority", "insecure-skip-tls-verify",
			"credentials-file", "credentials-secret", "bmc-ca-file", "bmc-skip-verify", "bmc-legacy-tls",
			"ipmi-cipher-suite", "ipmi-pause", "expect-uuid", "expect-serial":
			words = append(words, "--"+flag.Name+"="+shellWord(flag.Value.String()))
		}
	})
	options := target.options
	file := cmp.Or(shellWord(f.credentialsFile), "FILE")
	address := []string{command, shellWord(addressOf(options.Address)), "on", "--credentials-file", file}
	if f.caFile != "" {
		address = append(address, "--bmc-ca-file="+shellWord(f.caFile))
	}
	if options.SkipVerify {
		address = append(address, "--bmc-skip-verify")
	}
	if options.LegacyTLS {
		address = append(address, "--bmc-legacy-tls")
	}
	if options.CipherSuite != 0 {
		address = append(address, "--ipmi-cipher-suite="+strconv.Itoa(options.CipherSuite))
	}
	if options.Pause != 0 {
		address = append(address, "--ipmi-pause="+options.Pause.String())
	}
	if target.host == nil {
		return strings.Join(words, " "), strings.Join(words, " ")
	}

	return strings.Join(words, " "), strings.Join(address, " ")
}

// addressOf is an address as it can be typed.
func addressOf(address bmc.Address) string {
	switch {
	case address.Protocol == bmc.IPMI && address.Privilege != "ADMINISTRATOR" && address.Privilege != "":
		return "ipmi://" + address.Host + "?privilegelevel=" + address.Privilege
	case address.Protocol == bmc.IPMI:
		return "ipmi://" + address.Host
	case address.Scheme == "http":
		return "redfish+http://" + address.Host + address.SystemPath
	default:
		return "redfish://" + address.Host + address.SystemPath
	}
}

// shellWord quotes a word for a shell where that takes it for more than one word.
func shellWord(word string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]*$`).MatchString(word) {
		return word
	}

	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
