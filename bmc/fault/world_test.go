package fault_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

const (
	user     = "admin"
	password = "correct-horse-battery"
	image    = "http://192.0.2.1/rescue.iso"

	// requestCost is what the clock goes ahead with each request; realFactor how much faster than the machine's it is
	// between them, so that the driver's own pauses, which are real, are long enough for the simulated BMC.
	requestCost = 200 * time.Millisecond
	realFactor  = 5
	// patience bounds one request where it is to time out, and otherwise; real time.
	shortPatience = time.Second
	patience      = 20 * time.Second
	// callTime bounds one call of a Machine; real time. It is longer than the driver's own waits, but for tasks that
	// never end.
	callTime = 12 * time.Second
)

// world is one simulated BMC with its clock, and the driver's options for its first system.
type world struct {
	bmc     *fault.BMC
	thief   *httptest.Server
	stolen  atomic.Int32
	clock   *clocktesting.FakeClock
	options bmc.Options
	id      string
	// expected is the UUID of the machine, whatever the BMC tells later.
	expected string

	mu   sync.Mutex
	last time.Time
}

func newWorld(profile simulator.Profile, tls, hurried bool) (*world, error) {
	w := &world{clock: clocktesting.NewFakeClock(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)), last: time.Now()}
	w.thief = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.stolen.Add(1) }))
	var err error
	w.bmc, err = fault.Start(fault.Options{
		BMC: simulator.Options{Profile: profile, Username: user, Password: password, Clock: w.clock},
		TLS: tls, Clock: w.clock, Elsewhere: w.thief.URL,
		Around: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				w.tick()
				next.ServeHTTP(rw, r)
			})
		},
	})
	if err != nil {
		return nil, err
	}
	w.id = w.bmc.IDs()[0]
	w.expected = w.bmc.Simulator.State(w.id).UUID
	w.options, err = w.optionsFor(w.bmc.Address(w.id))
	if hurried {
		w.options.RequestTimeout = shortPatience
	}

	return w, err
}

func (w *world) optionsFor(address string) (bmc.Options, error) {
	parsed, err := bmc.ParseAddress(address)

	return bmc.Options{
		Address: parsed, CA: w.bmc.Endpoint.CA(), UUID: w.expected,
		Credentials:    bmc.Credentials{Username: user, Password: password},
		ConnectTimeout: patience, RequestTimeout: patience,
	}, err
}

// tick moves the clock on with a request.
func (w *world) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.clock.Step(requestCost + realFactor*now.Sub(w.last))
	w.last = now
}

// wait lets time pass.
func (w *world) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock.Step(d)
	w.last = time.Now()
}

// leaping is a clock on which every wait is over at once.
type leaping struct {
	*clocktesting.FakeClock

	world *world
}

// NewTimer implements clock.Clock.
func (l leaping) NewTimer(d time.Duration) clock.Timer {
	timer := l.FakeClock.NewTimer(d)
	l.world.wait(d)

	return timer
}

// After implements clock.Clock.
func (l leaping) After(d time.Duration) <-chan time.Time { return l.NewTimer(d).C() }

func (w *world) close() {
	w.bmc.Close()
	w.thief.Close()
}

func (w *world) time() clock.Clock { return leaping{FakeClock: w.clock, world: w} }

func (w *world) uuid() string { return w.expected }

func (w *world) open(ctx context.Context) (bmc.Machine, error) { return redfish.Open(ctx, w.options) }

// secret finds a credential in an error, its causes and their details.
func secret(err error) string {
	for ; err != nil; err = errors.Unwrap(err) {
		text := fmt.Sprintf("%v %+v %#v", err, err, err)
		for _, each := range []string{password, "YWRtaW46Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5", "simulated-token-"} {
			if strings.Contains(text, each) {
				return each + " in: " + text
			}
		}
	}

	return ""
}
