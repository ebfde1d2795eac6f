package bmo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// Switch is what was done to a machine's power.
type Switch string

// The switches.
const (
	Off Switch = "off"
	On  Switch = "on"
)

// What the provisioner of the test mode logs (pkg/provisioner/fixture/fixture.go of v0.13.2). The last line follows one of
// the two before it, when the power was not yet as it shall be.
const (
	fixtureLogger = "provisioner.fixture"
	messageLook   = "updating hardware state"
	messageOff    = "ensuring host is powered off"
	messageOn     = "ensuring host is powered on"
	messageSwitch = "changing status"
)

// Account is what it has done with one host so far.
type Account struct {
	// Looks is how often it has compared the host's power with what it shall be.
	Looks int
	// Switches are the changes that it has made to the power, in order.
	Switches []Switch
}

// Account reads the log from its start.
func (o *Operator) Account(host string) (Account, error) {
	data, err := os.ReadFile(o.process.LogFile(""))
	if err != nil {
		return Account{}, fmt.Errorf("reading the log of %s: %w", name, err)
	}

	return account(data, host), nil
}

func account(log []byte, host string) Account {
	var (
		a     Account
		asked Switch
	)
	for line := range bytes.Lines(log) {
		var said struct {
			Logger  string `json:"logger"`
			Message string `json:"msg"`
			Host    string `json:"host"`
		}
		// Other programs' lines, and one that is being written, are none of these.
		if json.Unmarshal(line, &said) != nil || said.Logger != fixtureLogger || said.Host != host {
			continue
		}
		switch said.Message {
		case messageLook:
			a.Looks++
		case messageOff:
			asked = Off
		case messageOn:
			asked = On
		case messageSwitch:
			a.Switches = append(a.Switches, asked)
		}
	}

	return a
}
