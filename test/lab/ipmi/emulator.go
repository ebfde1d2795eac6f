package ipmi

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

//go:embed pyghmi.py
var pyghmi string

// chassis is what ipmi_sim runs for the power of the machine: FILE get power|boot, or FILE set power|reset|shutdown|boot
// VALUE.
const chassis = `#!/bin/sh
file=$1 verb=$2 what=$3 value=$4
case $verb-$what in
get-power) echo "power:$(cat "$file" 2>/dev/null || echo 0)" ;;
get-boot) echo "boot:$(cat "$file.boot" 2>/dev/null || echo none)" ;;
set-power) echo "$value" >"$file"; echo "power $value" >>"$file.log" ;;
set-reset) echo reset >>"$file.log" ;;
set-shutdown) echo 0 >"$file"; echo soft >>"$file.log" ;;
set-boot) echo "$value" >"$file.boot"; echo "boot $value" >>"$file.log" ;;
esac
`

// Options say what to start.
type Options struct {
	// StateDir is an empty directory.
	StateDir string
	// Username and Password of the account; they hold no white space and no quote.
	Username, Password string
	// GUID is the answer to Get System GUID as it goes over the wire: 16 bytes in hexadecimal. Default one that begins
	// with a1.
	GUID string
	// Manufacturer is the IANA enterprise number that the BMC gives. ipmi_sim: always 4753.
	Manufacturer int
}

const defaultGUID = "a123456789abcdefa123456789abcdef"

// The product that ipmi_sim's FRU describes.
const (
	ProductManufacturer = "Stayput Lab"
	ProductName         = "Model One"
	ProductSerial       = "SN-0042"
)

// BMC is a running one. The machine behind it is off at first.
type BMC struct {
	dir     string
	port    int
	command *exec.Cmd
	ended   chan struct{}
}

// startTries: a free port may be taken by another between finding and using it.
const startTries = 3

var errEnded = errors.New("the BMC ended")

// StartSimulator starts ipmi_sim and waits until it answers. It has a second account, "operator", with the same password.
// The BMC outlives ctx, which bounds the start; Stop ends it, and so does the end of this program.
func StartSimulator(ctx context.Context, o Options) (*BMC, error) {
	return startAgain(ctx, o, func(b *BMC) (*exec.Cmd, error) {
		for name, content := range simulatorFiles(o, b.port) {
			if err := os.WriteFile(b.file(name), []byte(content), 0o700); err != nil { //nolint:gosec // one is a script
				return nil, fmt.Errorf("writing ipmi_sim's configuration: %w", err)
			}
		}

		return exec.CommandContext(context.WithoutCancel(ctx),
			"ipmi_sim", "-c", b.file("lan.conf"), "-f", b.file("bmc.emu"), "-s", o.StateDir, "-n"), nil
	})
}

// StartPyghmi starts the one of pyghmi; else it is as StartSimulator.
func StartPyghmi(ctx context.Context, o Options) (*BMC, error) {
	return startAgain(ctx, o, func(b *BMC) (*exec.Cmd, error) {
		// Debian's Python: another one does not see Debian's pyghmi.
		cmd := exec.CommandContext(context.WithoutCancel(ctx), "/usr/bin/python3", "-c", pyghmi,
			strconv.Itoa(b.port), o.Username, o.StateDir, strconv.Itoa(o.Manufacturer), guid(o))
		cmd.Stdin = strings.NewReader(o.Password + "\n")

		return cmd, nil
	})
}

func guid(o Options) string {
	if o.GUID == "" {
		return defaultGUID
	}

	return o.GUID
}

func simulatorFiles(o Options, port int) map[string]string {
	lan := fmt.Sprintf(`name "machine"
set_working_mc 0x20
startlan 1
  addr 127.0.0.1 %d
  priv_limit admin
  allowed_auths_user none md2 md5 straight
  allowed_auths_operator none md2 md5 straight
  allowed_auths_admin none md2 md5 straight
  guid %s
endlan
chassis_control "%s %s"
user 1 false "" "" user 10 none md2 md5 straight
user 2 true "%s" "%s" admin 10 none md2 md5 straight
user 3 true "operator" "%s" operator 10 none md2 md5 straight
`, port, guid(o), filepath.Join(o.StateDir, "chassis"), filepath.Join(o.StateDir, "power"), o.Username, o.Password, o.Password)
	emulation := "mc_setbmc 0x20\n" +
		"mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n" +
		"sel_enable 0x20 1000 0x0a\n" +
		"mc_add_fru_data 0x20 0 " + fruData() + "\n" +
		"mc_enable 0x20\n"

	return map[string]string{"lan.conf": lan, "bmc.emu": emulation, "chassis": chassis}
}

func startAgain(ctx context.Context, o Options, command func(b *BMC) (*exec.Cmd, error)) (*BMC, error) {
	for try := 1; ; try++ {
		b, err := start(ctx, o, command)
		if err == nil || try == startTries || !errors.Is(err, errEnded) {
			return b, err
		}
	}
}

func start(ctx context.Context, o Options, command func(b *BMC) (*exec.Cmd, error)) (*BMC, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	b := &BMC{dir: o.StateDir, port: port, ended: make(chan struct{})}
	if b.command, err = command(b); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(b.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the BMC's log: %w", err)
	}
	defer log.Close()
	b.command.Stdout, b.command.Stderr = log, log
	b.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", b.command.Path, err)
	}
	go func() {
		_ = b.command.Wait() // It ends by being killed.
		close(b.ended)
	}()
	if err := b.waitReady(ctx); err != nil {
		b.Stop()
		text, _ := os.ReadFile(b.file("log"))

		return nil, fmt.Errorf("starting %s: %w; its log: %s", b.command.Path, err, text)
	}

	return b, nil
}

// Address is its address, for a BareMetalHost's spec.bmc.address.
func (b *BMC) Address() string { return "ipmi://127.0.0.1:" + strconv.Itoa(b.port) }

// Port is its UDP port.
func (b *BMC) Port() int { return b.port }

// Stop ends it at once.
func (b *BMC) Stop() {
	_ = b.command.Process.Kill() // It may have ended.
	<-b.ended
}

// Told lists what the machine behind ipmi_sim was told: "power 0", "power 1", "reset", "soft", "boot pxe".
func (b *BMC) Told() ([]string, error) { return b.lines("power.log") }

// Requests lists the requests that pyghmi's BMC got in sessions, as "NNCC data" in hexadecimal: network function,
// command, data.
func (b *BMC) Requests() ([]string, error) { return b.lines("requests") }

// SetFaults tells pyghmi's BMC how to answer from now on. The key is "NNCC" as in Requests, or "NNCCDD" with the first byte
// of the data, or "session" for the begin of one. The value is "lost" (it acts, and does not answer) or a completion code in
// hexadecimal; for "session" an RMCP+ status code. With "seconds" it is how long ago, to the BMC, the boot flags were set.
func (b *BMC) SetFaults(faults map[string]string) error {
	var text strings.Builder
	for key, fault := range faults {
		fmt.Fprintln(&text, key, fault)
	}
	// Renamed, so that the BMC reads all of it or nothing.
	next := b.file("faults.next")
	if err := os.WriteFile(next, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("writing the faults: %w", err)
	}
	if err := os.Rename(next, b.file("faults")); err != nil {
		return fmt.Errorf("putting the faults in place: %w", err)
	}

	return nil
}

func (b *BMC) lines(name string) ([]string, error) {
	text, err := os.ReadFile(b.file(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what the BMC got: %w", err)
	}

	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}

func (b *BMC) file(name string) string { return filepath.Join(b.dir, name) }
