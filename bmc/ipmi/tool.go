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
	// readTries and readWait bound a read: ipmitool waits readWait seconds for an answer, and a second longer at each try.
	readTries, readWait = "3", "2"
	// writeTries is one: a repeated write may act twice.
	writeTries, writeWait = "1", "5"
	// killedWait is how long a killed ipmitool's pipes are read.
	killedWait = time.Second
	// sending is what ipmitool -v says just before it sends a raw request.
	sending = "RAW REQ (channel="
)

// command is one run of ipmitool.
type command struct {
	// op is what it is for, as a gerund.
	op string
	// writes tells that it may change something, so that it is sent once.
	writes bool
	// terse leaves out -v, which makes "sel list" lose the time of day.
	terse bool
	// words follow the options.
	words []string
}

// raw sends bytes and gives those of the answer, without the completion code.
func (m *machine) raw(ctx context.Context, writes bool, op string, request ...byte) ([]byte, error) {
	c := command{op: op, writes: writes, words: []string{"raw"}}
	for _, each := range request {
		c.words = append(c.words, fmt.Sprintf("0x%02x", each))
	}
	text, err := m.run(ctx, c)
	if err != nil {
		return nil, err
	}
	var answer []byte
	for field := range strings.FieldsSeq(text) {
		value, err := strconv.ParseUint(field, 16, 8)
		if err != nil {
			return nil, m.fail(unanswered(writes), op, fmt.Sprintf("ipmitool gives %q, not bytes", text), err)
		}
		answer = append(answer, byte(value))
	}

	return answer, nil
}

// read is raw, and gives an answer that has at least so many bytes.
func (m *machine) read(ctx context.Context, op string, length int, request ...byte) ([]byte, error) {
	answer, err := m.raw(ctx, false, op, request...)
	if err == nil && len(answer) < length {
		err = m.fail(bmc.Transient, op, fmt.Sprintf("the BMC's answer has %d bytes, not %d", len(answer), length), nil)
	}

	return answer, err
}

// run gives what ipmitool prints on its standard output. When the BMC would not give a part of it, it gives an error too.
func (m *machine) run(ctx context.Context, c command) (string, error) {
	if err := m.rest(ctx); err != nil {
		return "", m.fail(bmc.Transient, c.op, "nothing was sent: "+err.Error(), err)
	}
	limited, cancel := context.WithTimeout(ctx, m.options.RequestTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, m.tool, append(m.arguments(c), c.words...)...)
	// UTC for the times of the log, C for texts that can be told apart.
	cmd.Env = []string{"IPMITOOL_PASSWORD=" + m.options.Credentials.Password, "TZ=UTC", "LC_ALL=C"}
	cmd.WaitDelay = killedWait
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	m.ended = m.clock.Now()
	if err == nil {
		m.loggedIn = true

		return stdout.String(), m.unread(c.op, stderr.String()+"\n"+stdout.String())
	}
	sent := c.terse || strings.Contains(stderr.String(), sending)
	if stopped := limited.Err(); stopped != nil {
		if sent && c.writes {
			return "", m.fail(bmc.Unknown, c.op, fmt.Sprintf("it was sent, and no answer came: %v", stopped), stopped)
		}

		return "", m.fail(bmc.Transient, c.op, fmt.Sprintf("the BMC did not answer: %v", stopped), stopped)
	}
	if _, ran := errors.AsType[*exec.ExitError](err); !ran {
		return "", m.fail(bmc.Transient, c.op, "nothing was sent, ipmitool cannot be run: "+err.Error(), err)
	}
	kind, detail := classify(stderr.String()+"\n"+stdout.String(), c.writes && sent)
	if kind == bmc.Auth && strings.HasPrefix(detail, silentLogin) && (m.options.Accepted || m.loggedIn) {
		// The BMC has accepted this very account before, so that it is the message that was lost.
		kind, detail = bmc.Transient, "nothing was sent: the BMC, which has accepted this account before, does not answer its login"
	}
	failed := m.fail(kind, c.op, detail, err)
	// A write that was sent, and neither unanswered nor left open, was answered with a refusal.
	failed.Refused = c.writes && sent && kind != bmc.Unknown

	return "", failed
}

// unread is an error when ipmitool says that it could not read a part of the log or of the FRU: its exit code is 0 then.
func (m *machine) unread(op, text string) error {
	parts := unreadParts(text)
	if parts == "" {
		return nil
	}
	kind, detail := classify(parts, false)

	return m.fail(kind, op, detail, nil)
}

// maxDetail bounds the text of an error, in bytes: ipmitool says much.
const maxDetail = 1000

// rest waits until the BMC may be asked again.
func (m *machine) rest(ctx context.Context) error {
	if err := ctx.Err(); err != nil || m.ended.IsZero() {
		return err
	}
	left := m.options.Pause - m.clock.Since(m.ended)
	if left <= 0 {
		return nil
	}
	timer := m.clock.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *machine) arguments(c command) []string {
	host, port, _ := net.SplitHostPort(m.options.Address.HostPort())
	tries, wait := readTries, readWait
	if c.writes {
		tries, wait = writeTries, writeWait
	}
	arguments := []string{
		"-I", "lanplus", "-H", host, "-p", port, "-U", m.options.Credentials.Username, "-E",
		"-L", m.options.Address.Privilege, "-C", strconv.Itoa(m.options.CipherSuite), "-R", tries, "-N", wait,
	}
	if !c.terse {
		arguments = append(arguments, "-v")
	}

	return arguments
}

func (m *machine) fail(kind bmc.Kind, op, detail string, cause error) *bmc.Error {
	return &bmc.Error{
		Kind: kind, Op: op, BMC: m.options.Address.HostPort(), Detail: m.line(detail, maxDetail), Err: cause,
	}
}

// line makes a line of a text of the BMC, or of ipmitool, that can be shown; limit bounds it, in bytes.
func (m *machine) line(text string, limit int) string {
	return bmc.NewRedactor(m.options.Credentials).Line(text, limit)
}
