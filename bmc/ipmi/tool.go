package ipmi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	// cipherSuite is RAKP-HMAC-SHA1, HMAC-SHA1-96, AES-CBC-128: the one that every IPMI 2.0 BMC must have.
	cipherSuite = "3"
	// readTries and readWait bound a read: ipmitool waits a second longer at each try. Both in ipmitool's own units.
	readTries, readWait = "3", "2"
	// writeTries is one: a repeated write may act twice.
	writeTries, writeWait = "1", "5"
	// killedWait is how long a killed ipmitool's pipes are read.
	killedWait = time.Second
)

// read runs a command that changes nothing.
func (m *machine) read(ctx context.Context, op string, command ...string) (string, error) {
	return m.run(ctx, false, op, command)
}

// write runs a command once.
func (m *machine) write(ctx context.Context, op string, command ...string) (string, error) {
	return m.run(ctx, true, op, command)
}

func (m *machine) run(ctx context.Context, writes bool, op string, command []string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", m.fail(bmc.Transient, op, "not sent: "+err.Error(), err)
	}
	limited, cancel := context.WithTimeout(ctx, m.options.RequestTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, m.tool, append(m.arguments(writes), command...)...) //nolint:gosec // no shell
	// UTC for the times of the log, C for texts that can be told apart.
	cmd.Env = []string{"IPMITOOL_PASSWORD=" + m.options.Credentials.Password, "TZ=UTC", "LC_ALL=C"}
	cmd.WaitDelay = killedWait
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	if limited.Err() != nil {
		kind := bmc.Transient
		if writes {
			kind = bmc.Unknown
		}

		return "", m.fail(kind, op, fmt.Sprintf("ipmitool was stopped: %v", limited.Err()), limited.Err())
	}
	if _, ran := errors.AsType[*exec.ExitError](err); !ran {
		return "", m.fail(bmc.Transient, op, "not sent, ipmitool cannot be started; install it", err)
	}
	text := strings.TrimSpace(stderr.String() + "\n" + stdout.String())
	kind, fix := classify(text, writes)

	return "", m.fail(kind, op, oneLine(text)+fix, err)
}

func (m *machine) arguments(writes bool) []string {
	host, port, _ := net.SplitHostPort(m.options.Address.HostPort())
	tries, wait := readTries, readWait
	if writes {
		tries, wait = writeTries, writeWait
	}

	return []string{
		"-I", "lanplus", "-H", host, "-p", port, "-U", m.options.Credentials.Username, "-E",
		"-L", m.options.Address.Privilege, "-C", cipherSuite, "-R", tries, "-N", wait,
	}
}

// raw sends bytes and gives those of the answer, without the completion code.
func (m *machine) raw(ctx context.Context, writes bool, op string, request ...byte) ([]byte, error) {
	command := []string{"raw"}
	for _, each := range request {
		command = append(command, fmt.Sprintf("0x%02x", each))
	}
	text, err := m.run(ctx, writes, op, command)
	if err != nil {
		return nil, err
	}
	var answer []byte
	for _, field := range strings.Fields(text) {
		value, err := strconv.ParseUint(field, 16, 8)
		if err != nil {
			return nil, m.fail(bmc.Transient, op, fmt.Sprintf("answer %q is not bytes", oneLine(text)), err)
		}
		answer = append(answer, byte(value))
	}

	return answer, nil
}

func (m *machine) fail(kind bmc.Kind, op, detail string, cause error) error {
	return &bmc.Error{
		Kind: kind, Op: op, BMC: m.options.Address.HostPort(), Detail: m.options.Credentials.Redact(detail), Err: cause,
	}
}

// classify reads ipmitool's words (1.8.19), the first match counts. What it does not know is of kind Transient after a
// read and Unknown after a write.
func classify(text string, writes bool) (kind bmc.Kind, fix string) {
	low := strings.ToLower(text)
	for _, known := range []struct {
		kind  bmc.Kind
		fix   string
		words []string
	}{
		{bmc.Busy, "", []string{"insufficient resources", "node busy", "initialization in progress", "out of space"}},
		{bmc.Unsupported, "; the BMC refuses cipher suite 3: enable it", []string{
			"invalid authentication algorithm", "invalid integrity algorithm", "invalid confidentiality algorithm",
			"no cipher suite match", "no matching cipher suite",
		}},
		{bmc.Auth, "", []string{
			"rakp 2 hmac is invalid", "unauthorized name", "unauthorized guid", "invalid role", "password invalid",
			"activate session error", "insufficient privilege", "set session privilege level",
		}},
		{bmc.Conflict, "", []string{"not supported in present state", "rsp=0xd5"}},
		{bmc.Unsupported, "", []string{
			"invalid command", "invalid data field", "parameter not supported", "rsp=0xc1", "rsp=0xcc", "rsp=0x80",
		}},
		{bmc.Transient, "; nothing was sent: the BMC does not answer, or hides that it refuses the credentials",
			[]string{"unable to establish"}},
	} {
		for _, word := range known.words {
			if strings.Contains(low, word) {
				return known.kind, known.fix
			}
		}
	}
	if writes {
		return bmc.Unknown, ""
	}

	return bmc.Transient, ""
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
