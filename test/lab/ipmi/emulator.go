// Package ipmi runs real IPMI BMCs without machines, on loopback, for tests: OpenIPMI's ipmi_sim and one on pyghmi's
// server. Needed on the machine: openipmi, python3-pyghmi.
//
// ipmi_sim knows power cycle and the event log, and keeps no UEFI bit of a boot override. pyghmi keeps all bytes of it,
// has neither cycle nor log, and refuses a reset of a machine that is off.
package ipmi

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

//go:embed pyghmi.py
var pyghmi string //nolint:gochecknoglobals // go:embed needs one

// Options say what to start.
type Options struct {
	// StateDir is an empty directory.
	StateDir string
	// Username and Password of the only account; they hold no white space and no quote.
	Username, Password string
}

// StartSimulator starts ipmi_sim. The machine is off. The BMC runs until ctx ends; stop waits for its end. It may take
// a moment until it answers.
func StartSimulator(ctx context.Context, o Options) (address string, stop func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	script := filepath.Join(o.StateDir, "chassis")
	lan := fmt.Sprintf(`name "machine"
set_working_mc 0x20
startlan 1
  addr 127.0.0.1 %d
  priv_limit admin
  allowed_auths_admin none md2 md5 straight
  guid a123456789abcdefa123456789abcdef
endlan
chassis_control "%s %s/power"
user 1 false "" "" user 10 none md2 md5 straight
user 2 true "%s" "%s" admin 10 none md2 md5 straight
`, port, script, o.StateDir, o.Username, o.Password)
	const emulation = "mc_setbmc 0x20\n" +
		"mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n" +
		"sel_enable 0x20 1000 0x0a\nmc_enable 0x20\n"
	const chassis = `#!/bin/sh
# ipmi_sim calls: FILE get power|boot..., or FILE set power|reset|shutdown|boot VALUE.
file=$1 verb=$2 what=$3 value=$4
case $verb-$what in
get-power) echo "power:$(cat "$file" 2>/dev/null || echo 0)" ;;
get-boot) echo "boot:$(cat "$file.boot" 2>/dev/null || echo none)" ;;
set-power) echo "$value" >"$file"; echo "power $value" >>"$file.log" ;;
set-reset) echo reset >>"$file.log" ;;
set-shutdown) echo 0 >"$file"; echo soft >>"$file.log" ;;
set-boot) echo "$value" >"$file.boot" ;;
esac
`
	for name, content := range map[string]string{"lan.conf": lan, "bmc.emu": emulation, "chassis": chassis} {
		if err := os.WriteFile(filepath.Join(o.StateDir, name), []byte(content), 0o700); err != nil { //nolint:gosec // a script
			return "", nil, fmt.Errorf("writing ipmi_sim's configuration: %w", err)
		}
	}
	stop, err = start(ctx, "", "ipmi_sim", "-c", filepath.Join(o.StateDir, "lan.conf"),
		"-f", filepath.Join(o.StateDir, "bmc.emu"), "-s", o.StateDir, "-n")

	return "ipmi://127.0.0.1:" + strconv.Itoa(port), stop, err
}

// StartPyghmi starts the one of pyghmi; else it is as StartSimulator.
func StartPyghmi(ctx context.Context, o Options) (address string, stop func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	// Debian's Python: another one does not see Debian's pyghmi.
	stop, err = start(ctx, o.Password+"\n", "/usr/bin/python3", "-c", pyghmi, strconv.Itoa(port), o.Username)

	return "ipmi://127.0.0.1:" + strconv.Itoa(port), stop, err
}

func start(ctx context.Context, input, name string, arguments ...string) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Stdin = strings.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		cancel()

		return nil, fmt.Errorf("starting %s: %w", name, err)
	}

	return func() {
		cancel()
		_ = cmd.Wait() // It is always that it was killed.
	}, nil
}

func freePort() (int, error) {
	connection, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, fmt.Errorf("finding a free UDP port: %w", err)
	}
	_, port, _ := net.SplitHostPort(connection.LocalAddr().String())
	if err := connection.Close(); err != nil {
		return 0, fmt.Errorf("freeing UDP port %s: %w", port, err)
	}

	return strconv.Atoi(port)
}
