package boot_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/stayput-dev/stayput/agent/boot"
)

var errDenied = errors.New("access denied")

// bus is a message bus with the two services in one: it answers each method with what the test gave.
type bus struct {
	mu sync.Mutex
	// answers are by "Member" or, for properties, "Get:name"; an error is answered as one. A method without an answer gets
	// none at all.
	answers map[string]any
	calls   []string
}

func (b *bus) connect(ctx context.Context) (*dbus.Conn, error) {
	client, server := net.Pipe()

	go b.serve(server)

	conn, err := dbus.NewConn(client, dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}

	if err := conn.Auth([]dbus.Auth{dbus.AuthAnonymous()}); err != nil {
		return nil, err
	}

	return conn, conn.Hello()
}

// serve speaks the server's side of authentication (D-Bus specification, "Authentication Protocol"), then answers calls
// until the client is gone.
func (b *bus) serve(server net.Conn) {
	defer func() { _ = server.Close() }() // the client has closed it

	reader := bufio.NewReader(server)
	if _, err := reader.ReadByte(); err != nil {
		return
	}

	for _, reply := range []string{"REJECTED ANONYMOUS\r\n", "OK 1234deadbeef\r\n", ""} {
		if _, err := reader.ReadString('\n'); err != nil {
			return
		}

		if _, err := server.Write([]byte(reply)); err != nil {
			return
		}
	}

	for {
		message, err := dbus.DecodeMessage(reader)
		if err != nil {
			return
		}

		if reply := b.answer(message); reply != nil {
			if err := reply.EncodeTo(server, binary.LittleEndian); err != nil {
				return
			}
		}
	}
}

func (b *bus) answer(message *dbus.Message) *dbus.Message {
	b.mu.Lock()
	defer b.mu.Unlock()

	member, _ := message.Headers[dbus.FieldMember].Value().(string)
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(message.Serial()), dbus.FieldSender: dbus.MakeVariant("x.y"),
	}}

	key := member

	switch member {
	case "Hello":
		return body(reply, ":1.1")
	case "Get":
		key = fmt.Sprintf("Get:%v", message.Body[1])
	}

	b.calls = append(b.calls, strings.TrimSpace(fmt.Sprintln(append([]any{member}, message.Body...)...)))

	switch value := b.answers[key].(type) {
	case nil:
		return nil
	case error:
		reply.Type = dbus.TypeError
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.test.Failed")

		return body(reply, value.Error())
	case []any:
		return body(reply, value...)
	default:
		return body(reply, value)
	}
}

func body(reply *dbus.Message, values ...any) *dbus.Message {
	if len(values) > 0 {
		reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(values...))
		reply.Body = values
	}

	return reply
}

func TestRebootThroughLogind(t *testing.T) {
	t.Parallel()

	b := &bus{answers: map[string]any{"RebootWithFlags": []any{}}}
	if err := (boot.Logind{Connect: b.connect}).Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}

	if want := []string{"RebootWithFlags 0"}; !slices.Equal(b.calls, want) {
		t.Errorf("logind was asked %q, want %q", b.calls, want)
	}
}

func TestRebootErrors(t *testing.T) {
	t.Parallel()

	refusing := &bus{answers: map[string]any{"RebootWithFlags": errDenied}}
	if err := (boot.Logind{Connect: refusing.connect}).Reboot(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "access denied") {
		t.Errorf("a refusal gives %v", err)
	}

	noBus := boot.Logind{Connect: func(context.Context) (*dbus.Conn, error) { return nil, errNoBus }}
	if err := noBus.Reboot(t.Context()); !errors.Is(err, errNoBus) {
		t.Errorf("without a bus: %v", err)
	}

	silent := &bus{}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	if err := (boot.Logind{Connect: silent.connect}).Reboot(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without an answer: %v", err)
	}
}

func TestSystemd(t *testing.T) {
	t.Parallel()

	b := &bus{answers: map[string]any{
		"LoadUnit":                dbus.ObjectPath("/unit"),
		"Get:RuntimeWatchdogUSec": dbus.MakeVariant(uint64(60_000_000)),
		"Get:Requires":            dbus.MakeVariant([]string{"sysinit.target", boot.UnitBootGate}),
		"Get:LoadState":           dbus.MakeVariant("loaded"),
		"Set":                     []any{},
	}}
	manager := boot.Systemd{Connect: b.connect}

	if got, err := manager.RuntimeWatchdog(t.Context()); err != nil || got != time.Minute {
		t.Errorf("RuntimeWatchdog() = %v, %v", got, err)
	}

	if got, err := manager.Requires(t.Context(), boot.UnitBootComplete); err != nil || !slices.Contains(got, boot.UnitBootGate) {
		t.Errorf("Requires() = %v, %v", got, err)
	}

	if got, err := manager.UnitState(t.Context(), boot.UnitBootGate); err != nil || got != "loaded" {
		t.Errorf("UnitState() = %v, %v", got, err)
	}

	if err := manager.SetRuntimeWatchdog(t.Context(), 30*time.Second); err != nil {
		t.Error(err)
	}

	if last := b.calls[len(b.calls)-1]; !strings.Contains(last, "RuntimeWatchdogUSec") || !strings.Contains(last, "30000000") {
		t.Errorf("the last call was %q", last)
	}

	broken := boot.Systemd{Connect: (&bus{answers: map[string]any{
		"LoadUnit": errDenied, "Set": errDenied, "Get:RuntimeWatchdogUSec": errDenied,
	}}).connect}

	if _, err := broken.UnitState(t.Context(), "x.service"); err == nil || !strings.Contains(err.Error(), "x.service") {
		t.Errorf("UnitState() = %v", err)
	}

	if err := broken.SetRuntimeWatchdog(t.Context(), time.Second); err == nil {
		t.Error("a failed Set gives no error")
	}

	if _, err := broken.RuntimeWatchdog(t.Context()); err == nil {
		t.Error("a failed Get gives no error")
	}
}
