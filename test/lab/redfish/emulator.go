package redfish

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// FakeSystem is a machine of the fake driver.
type FakeSystem struct {
	// UUID is the system's ID; Name another name for it.
	UUID, Name string
	// PoweredOn is its power at the first start.
	PoweredOn bool
}

// Options say what to emulate. Exactly one of Fake and LibvirtURI is given.
type Options struct {
	// StateDir keeps configuration, certificate, password file, state and log. It is made.
	StateDir string
	// Username and Password of the BMC account.
	Username, Password string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Fake are the machines of the fake driver.
	Fake []FakeSystem
	// LibvirtURI is a libvirt whose domains are the machines, such as qemu:///system.
	LibvirtURI string
	// Progress gets the installer's output. Default: nothing.
	Progress io.Writer
}

// Emulator is a running BMC emulator.
type Emulator struct {
	port        int
	certificate []byte
	logFile     string
	command     *exec.Cmd
	ended       chan struct{}
	endError    error
}

const (
	loopback     = "127.0.0.1"
	startTimeout = 60 * time.Second
	startPoll    = 100 * time.Millisecond
	stopTimeout  = 5 * time.Second
	// startTries: a free port may be taken by another between finding and using it.
	startTries = 3
)

var (
	errNoDriver   = errors.New("give either Fake or LibvirtURI")
	errEnded      = errors.New("the emulator ended")
	errDoesNotEnd = errors.New("the process does not end")
)

// Start installs the emulator when needed, starts it, and waits until it answers. The process outlives ctx, which
// bounds the start only; Stop ends it. Its PID is in StateDir/pid.
func Start(ctx context.Context, options Options) (*Emulator, error) {
	if (len(options.Fake) == 0) == (options.LibvirtURI == "") {
		return nil, fmt.Errorf("starting the emulator: %w", errNoDriver)
	}
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	program, err := Install(ctx, options.Progress)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		emulator, err := start(ctx, program, options)
		if err == nil {
			return emulator, nil
		}
		if options.Port != 0 || try == startTries || !errors.Is(err, errEnded) {
			return nil, err
		}
	}
}

func start(ctx context.Context, program string, options Options) (*Emulator, error) {
	e := &Emulator{port: options.Port, logFile: filepath.Join(options.StateDir, "log"), ended: make(chan struct{})}
	if e.port == 0 {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		e.port = port
	}
	config, err := e.configure(options)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(e.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the emulator's log: %w", err)
	}
	defer log.Close()
	// It outlives ctx: Stop ends it.
	e.command = exec.CommandContext(context.WithoutCancel(ctx), program, "--config", config)
	e.command.Stdout, e.command.Stderr = log, log
	// Its own process group: an interrupt at the terminal reaches the lab first, which then stops it.
	e.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.command.Start(); err != nil {
		return nil, fmt.Errorf("starting the emulator: %w", err)
	}
	go func() {
		e.endError = e.command.Wait()
		close(e.ended)
	}()
	pid := []byte(strconv.Itoa(e.command.Process.Pid) + "\n")
	if err := os.WriteFile(filepath.Join(options.StateDir, "pid"), pid, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the emulator's PID: %w", err), e.Stop())
	}
	if err := e.waitReady(ctx); err != nil {
		return nil, errors.Join(err, e.Stop())
	}

	return e, nil
}

// configure writes the emulator's files and gives the path of its configuration, which is a Python program: values
// are written as JSON strings, which Python reads alike.
func (e *Emulator) configure(options Options) (string, error) {
	if err := os.MkdirAll(options.StateDir, 0o700); err != nil {
		return "", fmt.Errorf("making the emulator's directory: %w", err)
	}
	certificate, key, err := newCertificate()
	if err != nil {
		return "", err
	}
	e.certificate = certificate
	// The lowest cost: the emulator checks the password with every request.
	hash, err := bcrypt.GenerateFromPassword([]byte(options.Password), bcrypt.MinCost)
	if err != nil {
		return "", fmt.Errorf("hashing the emulator's password: %w", err)
	}
	in := func(name string) string { return filepath.Join(options.StateDir, name) }
	settings := []setting{
		{"SUSHY_EMULATOR_LISTEN_IP", loopback},
		{"SUSHY_EMULATOR_LISTEN_PORT", e.port},
		{"SUSHY_EMULATOR_SSL_CERT", in("tls.crt")},
		{"SUSHY_EMULATOR_SSL_KEY", in("tls.key")},
		{"SUSHY_EMULATOR_AUTH_FILE", in("htpasswd")},
		{"SUSHY_EMULATOR_STATE_DIR", options.StateDir},
	}
	if options.LibvirtURI != "" {
		settings = append(settings, setting{"SUSHY_EMULATOR_LIBVIRT_URI", options.LibvirtURI})
	} else {
		settings = append(settings,
			setting{"SUSHY_EMULATOR_FAKE_DRIVER", 1}, setting{"SUSHY_EMULATOR_FAKE_SYSTEMS", fakes(options.Fake)})
	}
	var config bytes.Buffer
	for _, each := range settings {
		value, err := json.Marshal(each.value)
		if err != nil {
			return "", fmt.Errorf("writing setting %s: %w", each.name, err)
		}
		fmt.Fprintf(&config, "%s = %s\n", each.name, value)
	}
	for name, content := range map[string][]byte{
		"tls.crt": certificate, "tls.key": key, "emulator.conf": config.Bytes(),
		"htpasswd": []byte(options.Username + ":" + string(hash) + "\n"),
	} {
		if err := os.WriteFile(in(name), content, 0o600); err != nil {
			return "", fmt.Errorf("writing the emulator's %s: %w", name, err)
		}
	}

	return in("emulator.conf"), nil
}

type setting struct {
	name  string
	value any
}

func fakes(systems []FakeSystem) []map[string]any {
	all := make([]map[string]any, 0, len(systems))
	for _, system := range systems {
		power := "Off"
		if system.PoweredOn {
			power = "On"
		}
		all = append(all, map[string]any{
			"uuid": system.UUID, "name": system.Name, "power_state": power, "nics": []any{},
		})
	}

	return all
}

func (e *Emulator) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(e.certificate)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
	ticker := time.NewTicker(startPoll)
	defer ticker.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Endpoint()+"/redfish/v1/", nil)
		if err != nil {
			return fmt.Errorf("asking the emulator: %w", err)
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-e.ended:
			return fmt.Errorf("%w (%w); see %s", errEnded, e.endError, e.logFile)
		case <-ctx.Done():
			return fmt.Errorf("waiting for the emulator: %w; see %s", ctx.Err(), e.logFile)
		case <-ticker.C:
		}
	}
}

// Stop ends the emulator and waits for it. It is safe to call twice.
func (e *Emulator) Stop() error {
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := e.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stopping the emulator: %w", err)
		}
		timer := time.NewTimer(stopTimeout)
		defer timer.Stop()
		select {
		case <-e.ended:
			return nil
		case <-timer.C:
		}
	}

	return fmt.Errorf("stopping the emulator (PID %d): %w", e.PID(), errDoesNotEnd)
}

// PID of the emulator.
func (e *Emulator) PID() int { return e.command.Process.Pid }

// HostPort is where it listens.
func (e *Emulator) HostPort() string { return net.JoinHostPort(loopback, strconv.Itoa(e.port)) }

// Endpoint is its URL.
func (e *Emulator) Endpoint() string { return "https://" + e.HostPort() }

// Address is the BareMetalHost address of a system.
func (e *Emulator) Address(uuid string) string {
	return "redfish-virtualmedia://" + e.HostPort() + "/redfish/v1/Systems/" + uuid
}

// CA is the certificate that verifies it, in PEM.
func (e *Emulator) CA() []byte { return bytes.Clone(e.certificate) }

// accepted is an access log line of a reset that was accepted, as werkzeug writes it: the request may be coloured.
var accepted = regexp.MustCompile(
	`POST /redfish/v1/Systems/([^/ ]+)/Actions/ComputerSystem\.Reset HTTP/[0-9.]+(?:\x1b\[0m)?" 20[0-9]`)

// Resets is how many power actions on a system were accepted since the state directory was made.
func (e *Emulator) Resets(uuid string) (int, error) {
	log, err := os.ReadFile(e.logFile)
	if err != nil {
		return 0, fmt.Errorf("reading the emulator's log: %w", err)
	}
	count := 0
	for _, line := range accepted.FindAllSubmatch(log, -1) {
		if strings.EqualFold(string(line[1]), uuid) {
			count++
		}
	}

	return count, nil
}

func freePort(ctx context.Context) (int, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return 0, fmt.Errorf("freeing the port: %w", err)
	}
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, fmt.Errorf("reading the free port: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("reading the free port: %w", err)
	}

	return port, nil
}
